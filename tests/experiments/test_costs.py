"""Reading HLO: costs of hand-written text by hand calculation, and of a compiled sharded program by its algebra."""

import re
import textwrap

import jax
import jax.numpy as jnp
import pytest

from experiments.compiling.costs import Reader, Traffic
from experiments.compiling.hlo import Shape, parse
from rlvr_jax.sharding import MeshShape, make_mesh, named_sharding

LOOP = textwrap.dedent(
    """\
    HloModule jit_step, is_scheduled=true, num_partitions=4

    %body (p: (s32[], bf16[8,16], bf16[5,16,4])) -> (s32[], bf16[8,16], bf16[5,16,4]) {
      %p = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}, bf16[5,16,4]{2,1,0:T(8,128)(2,1)}) parameter(0)
      %i = s32[]{:T(128)} get-tuple-element(%p), index=0
      %x = bf16[8,16]{1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
      %w = bf16[5,16,4]{2,1,0:T(8,128)(2,1)} get-tuple-element(%p), index=2
      %one = s32[]{:T(128)} constant(1)
      %next = s32[]{:T(128)} add(%i, %one)
      %slice = bf16[16,4]{1,0:T(8,128)(2,1)S(1)} fusion(%w, %i), kind=kLoop, calls=%sliced
      %whole = bf16[16,16]{1,0:T(8,128)(2,1)} all-gather(%slice), channel_id=3, replica_groups={{0,1,2,3}}
      %y = bf16[8,16]{1,0:T(8,128)(2,1)} convolution(%x, %whole), dim_labels=bf_io->bf
      ROOT %t = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}, bf16[5,16,4]{2,1,0:T(8,128)(2,1)}) tuple(%next, %y, %w)
    }

    %sliced (a: bf16[5,16,4], b: s32[]) -> bf16[16,4] {
      %a = bf16[5,16,4]{2,1,0:T(8,128)(2,1)} parameter(0)
      %b = s32[]{:T(128)} parameter(1)
      %z = s32[]{:T(128)} constant(0)
      %s = bf16[1,16,4]{2,1,0:T(8,128)(2,1)} dynamic-slice(%a, %b, %z, %z), dynamic_slice_sizes={1,16,4}
      ROOT %r = bf16[16,4]{1,0:T(8,128)(2,1)S(1)} bitcast(%s)
    }

    %condition (q: (s32[], bf16[8,16], bf16[5,16,4])) -> pred[] {
      %q = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}, bf16[5,16,4]{2,1,0:T(8,128)(2,1)}) parameter(0)
      %j = s32[]{:T(128)} get-tuple-element(%q), index=0
      %five = s32[]{:T(128)} constant(5)
      ROOT %less = pred[]{:T(512)} compare(%j, %five), direction=LT
    }

    ENTRY %main (x0: bf16[8,16], w0: bf16[5,16,4]) -> bf16[8,16] {
      %x0 = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
      %w0 = bf16[5,16,4]{2,1,0:T(8,128)(2,1)} parameter(1)
      %zero = s32[]{:T(128)} constant(0)
      %start = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}, bf16[5,16,4]{2,1,0:T(8,128)(2,1)}) tuple(%zero, %x0, %w0)
      %loop = (s32[], bf16[8,16]{1,0:T(8,128)}, bf16[5,16,4]{2,1,0}) while(%start), condition=%condition, body=%body
      ROOT %out = bf16[8,16]{1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=1
    }
    """
)  # fmt: skip
"""Five layers, whose weights [16, 16] are split over four devices."""


def test_a_loop_counts_as_often_as_it_turns():
    reader = Reader(LOOP)
    cost = reader.cost()
    assert reader.loops_of_unknown_turns == 0
    assert cost.flops == cost.passes == 5 * 2 * 8 * 16 * 16
    # Each device sends its quarter, 16 x 4 numbers of two bytes, three times on.
    assert cost.collectives == {"all-gather": Traffic(5, 5 * 3 * 16 * 4 * 2)}
    # The counter is read and written as well, 4 bytes each, with the constant that is added.
    slice_read, gathered, product = 16 * 4 * 2 + 4, 16 * 16 * 2, (8 * 16 + 16 * 16 + 8 * 16) * 2
    assert cost.memory_bytes == 5 * (slice_read + gathered + product + 3 * 4) + 5 * (4 + 4 + 1)


@pytest.mark.parametrize(
    ("edit", "turns"),
    [
        (("constant(5)", "constant(8)"), 8),
        (("%zero = s32[]{:T(128)} constant(0)", "%zero = s32[]{:T(128)} constant(2)"), 3),
        (("%one = s32[]{:T(128)} constant(1)", "%one = s32[]{:T(128)} constant(2)"), 3),
        (("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'), 7),
        (("direction=LT", "direction=NE"), 11),
    ],
)
def test_turns_of_a_loop(edit, turns):
    """The last: a loop whose turns its text does not tell takes the number that is given."""
    reader = Reader(LOOP.replace(*edit), [11])
    assert reader.cost().collectives["all-gather"].count == turns
    assert reader.loops_of_unknown_turns == (turns == 11)


PART = """\
ENTRY %main (a: f32[8,4], b: bf16[16]) -> f32[8,4] {{
  %a = f32[8,4]{{1,0}} parameter(0)
  %b = bf16[16]{{0}} parameter(1)
  {}
}}
"""


@pytest.mark.parametrize(
    ("line", "kind", "sent"),
    [
        ("ROOT %x = f32[8,4]{1,0} all-reduce(%a), replica_groups={{0,1},{2,3}}, to_apply=%add", "all-reduce", 128),
        ("ROOT %x = f32[2,4]{1,0} reduce-scatter(%a), replica_groups=[2,4]<=[8], to_apply=%add", "reduce-scatter", 96),
        ("ROOT %x = f32[8,4]{1,0} all-to-all(%a), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", "all-to-all", 64),
        ("ROOT %x = f32[8,4]{1,0} collective-permute(%a), source_target_pairs={{0,1}}", "collective-permute", 128),
        ("ROOT %x = (bf16[16]{0}, bf16[64]{0}) all-gather-start(%b), replica_groups=[1,4]<=[4]", "all-gather", 96),
        ("ROOT %x = bf16[64]{0} all-gather(%b), replica_groups=mesh['a'=2,'b'=4] {'b'}", "all-gather", 96),
        ("ROOT %x = bf16[64]{0} all-gather(%b), replica_groups=mesh['a'=8] {'a':(2)4}", "all-gather", 96),
    ],
)
def test_bytes_that_a_device_sends(line, kind, sent):
    assert Reader(PART.format(line)).cost().collectives == {kind: Traffic(1, sent)}


def test_products_written_as_convolutions():
    """A batch of four products [8, 16] by [16, 32], as a TPU writes it: the batch is a window that meets one place."""
    line = (
        "ROOT %x = f32[4,8,32]{2,1,0} convolution(%l, %r), window={size=4 stride=3 pad=0_0 lhs_dilate=4}, "
        "dim_labels=0bf_0io->0bf"
    )
    text = PART.format(f"%l = f32[4,8,16]{{2,1,0}} parameter(2)\n  %r = f32[4,16,32]{{2,1,0}} parameter(3)\n  {line}")
    assert Reader(text).cost().flops == 4 * 2 * 8 * 16 * 32
    exact = Reader(text.replace("dim_labels", "operand_precision={highest,highest}, dim_labels")).cost()
    assert exact.passes == 6 * exact.flops


def test_pieces_of_one_collective_count_once():
    """Beside other work a collective is cut into fusions that begin, carry and end it, each of which names it."""
    gather = "%{0} = bf16[64]{{0}} all-gather(%{1}), channel_id=9, replica_groups=[1,4]<=[4], dimensions={{0}}"
    piece = "%{0} (p{1}: bf16[16]) -> bf16[64] {{\n  %p{1} = bf16[16]{{0}} parameter(0)\n  {2}\n  {3}\n}}\n\n"
    custom = 'ROOT %c{0} = bf16[64]{{0}} custom-call(%g{0}), custom_call_target="AsyncCollective{1}"'
    text = "".join(
        piece.format(name, i, gather.format(f"g{i}", f"p{i}"), root)
        for i, (name, root) in enumerate(
            [
                ("fused_computation.1", custom.format(0, "Start")),
                ("async_collective_fusion.2", "ROOT %c1 = bf16[64]{0} negate(%g1)"),
                ("fused_computation.3", custom.format(2, "Done")),
                ("fused_computation.4", "ROOT %c3 = bf16[64]{0} negate(%g3)"),
            ]
        )
    )
    calls = [
        f"%f{i} = bf16[64]{{0}} fusion(%b), kind=kCustom, calls=%{name}"
        for i, name in enumerate(re.findall(r"^%(\S+) \(", text, re.MULTILINE))
    ]
    calls[-1] = f"ROOT {calls[-1]}"
    assert len(calls) == 4
    # Begun, carried and ended: one. The last one is whole.
    cost = Reader(text + PART.format("\n  ".join(calls))).cost()
    assert cost.collectives == {"all-gather": Traffic(2, 2 * 96)}


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 12), ("f32", 24), ("pred", 6), ("s4", 3), ("f8e4m3fn", 6)])
def test_bytes_of_a_shape(dtype, size):
    assert Shape(dtype, (2, 3)).bytes == size


def test_a_compiled_sharded_scan():
    """Six layers split over four devices: one all-gather of each, and a quarter of the operations on each device."""
    mesh = make_mesh(MeshShape(1, 4, 1), jax.devices()[:4])
    rows, split = named_sharding(mesh, ("batch",)), named_sharding(mesh, ("layers", "embed"))
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=rows)
    weights = jax.ShapeDtypeStruct((6, 64, 64), jnp.float32, sharding=split)

    @jax.jit
    def layers(x, weights):
        def layer(x, weight):
            whole = jax.lax.with_sharding_constraint(weight, named_sharding(mesh))
            return jax.lax.with_sharding_constraint(jnp.tanh(x @ whole), rows), None

        return jax.lax.scan(layer, x, weights)[0]

    cost = Reader(layers.lower(x, weights).compile().as_text()).cost()
    assert cost.flops == 6 * 2 * 8 * 64 * 64
    assert cost.collectives == {"all-gather": Traffic(6, 6 * 3 * 16 * 64 * 4)}


def test_computations_end_where_they_end():
    """Not at a brace within an attribute that spans lines; and also where it is said which part of a chip runs them."""
    text = """HloModule m

%apart (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%a)
}, execution_thread="sparsecore"

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %k = f32[8]{0} custom-call(%x), custom_call_target="k", frontend_attributes={kernel_metadata={
"of": "it"
}}, metadata={op_name="k"}
  ROOT %r = f32[8]{0} call(%k), to_apply=%apart
}
"""
    computations, entry = parse(text)
    assert entry == "main"
    assert {name: [each.name for each in found] for name, found in computations.items()} == {
        "apart": ["a", "n"],
        "main": ["x", "k", "r"],
    }
