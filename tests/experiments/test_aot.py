"""Programs compiled for TPUs that are not there, and what is said of them."""

import importlib.util
import json
import os

import jax
import pytest
from conftest import TINY
from jax.experimental.compilation_cache import compilation_cache

from experiments import aot
from experiments.compiling import chips, programs
from experiments.compiling.arrays import Lengths
from experiments.compiling.costs import Cost, Traffic
from experiments.compiling.programs import Program, least_collective_bytes
from experiments.presets import PRESETS
from rlvr_jax.models import abstract_params, open_config
from rlvr_jax.models.published import PUBLISHED
from rlvr_jax.sharding import MeshShape, make_mesh
from rlvr_jax.training import TrainConfig

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed"
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen3-1.7B", 1_720_574_976),
    ],
)
def test_published_models_have_as_many_parameters_as_their_pages_say(name, parameters):
    assert sum(x.size for x in jax.tree.leaves(abstract_params(open_config(name)))) == parameters


def test_the_published_9b_is_what_transformers_takes_for_it():
    from transformers import Qwen3_5TextConfig

    theirs = Qwen3_5TextConfig().to_dict()
    ours = dict(PUBLISHED["Qwen/Qwen3.5-9B"])
    interval = ours.pop("full_attention_interval")
    ours.pop("rope_parameters")
    assert {name: theirs[name] for name in ours} == ours
    assert theirs["layer_types"][:8].count("full_attention") == 8 // interval


def test_a_model_on_disk_is_read_without_weights_or_tokenizer(tiny_model, tmp_path):
    (tmp_path / "config.json").write_text((tiny_model.folder / "config.json").read_text())
    assert open_config(str(tmp_path)) == TINY


def test_every_preset_names_a_model_that_is_known_and_a_mesh_that_fits_it():
    """Those for TPU slices, on as many devices as there are; the others name none."""
    for name, config in PRESETS.items():
        if config.model in PUBLISHED:
            assert open_config(config.model).num_kv_heads % max(config.mesh.tensor, 1) == 0, name
    assert sum(config.model in PUBLISHED for config in PRESETS.values()) == 4


def test_least_collective_bytes_by_hand():
    """Two replicas, four shards of weights that are split over two more; 4,000 tokens on each pair of devices."""
    config = TrainConfig(
        prompts_per_step=8, samples_per_prompt=4, compute_dtype="bfloat16", micro_batches=1, model="tiny"
    )
    mesh = make_mesh(MeshShape(2, 2, 2), jax.devices()[:8])
    weights = 2 * sum(x.size for x in jax.tree.leaves(abstract_params(TINY))) / 2
    gathered_twice_and_scattered, all_reduced = 3 * weights / 2, weights / 2
    tokens = 7 + 2 * (10 + 4 * 20)  # 2 of 8 prompts on each
    activations = 2 * 4 * tokens * 32 * 2  # layers, all-reduces, tokens, hidden size, bytes; each sends them once
    expected = gathered_twice_and_scattered + all_reduced + activations
    assert least_collective_bytes(config, TINY, mesh, Lengths(7, 10, 21)) == expected


def test_times_and_share_by_hand():
    """A v5e multiplies 197e12 a second, moves 819e9 bytes and sends 200e9; its memory holds 16e9."""
    cost = Cost(197e12, 394e12, 819e9, {"all-gather": Traffic(3, 100e9)})
    program = Program(1.0, {"temporaries": 12e9, "total": 16e9}, cost)
    found = aot.figures_of(program, chips.CHIPS["v5e"])
    seconds = {"products": 2.0, "memory": 1.0, "interconnect": 0.5, "overlapped": 2.0, "one_by_one": 3.5}
    assert found["seconds"] == pytest.approx(seconds)
    assert found["fits"]
    assert not aot.figures_of(Program(1.0, {"total": 16.1e9}, cost), chips.CHIPS["v5e"])["fits"]
    assert not aot.figures_of(Program(1.0, {"total": 1e9}, None), chips.CHIPS["v5e"])["fits"]


@pytest.fixture(autouse=True)
def process_of_other_tests(monkeypatch):
    """The command sets up its process for itself; here it is that of other tests as well.

    It takes XLA_FLAGS out of the environment, which XLA reads when the first device is asked for, and goes without the
    cache of compiled programs, of which JAX asks once.
    """
    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def flags(folder, **more):
    """A step of eight prompts on four chips."""
    values = {"topology": "v5e:2x2", "mesh.data": 1, "mesh.fsdp": 2, "mesh.tensor": 2, "max-new-tokens": 16, **more}
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return ["gsm8k", "--model", folder, "--prompts-per-step", 8, "--prompt-tokens", 12, *words]


@needs_libtpu
def test_a_tiny_model_compiled_for_four_chips(call, tiny_model):
    code, out, err = call(aot, *flags(tiny_model.folder), "--programs", "update", "finish", "--json")
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["fits"]
    assert summary["mesh"] == {"data": 1, "fsdp": 2, "tensor": 2}
    assert list(summary["programs"]) == ["update", "finish"]
    update = summary["programs"]["update"]
    parameters = sum(x.size for x in jax.tree.leaves(abstract_params(TINY)))
    # Weights and two moments in float32, split over four; in tiles 128 wide, rows of 16 take up to eight times as much.
    assert 12 * parameters / 4 < update["memory"]["arguments"] < 8 * 12 * parameters / 4
    tokens = 8 * (12 + 4 * 15)
    forward = 2 * tokens * (parameters - TINY.vocab_size * TINY.hidden_size) / 4
    assert 3 * forward < update["flops"] < 6 * forward
    assert update["collectives"]["all-reduce"]["count"] > 2 * TINY.num_layers
    # The moments, which the sampler has no use for.
    assert summary["programs"]["finish"]["memory"]["resident"] > 8 * parameters / 4


@pytest.mark.slow
@needs_libtpu
def test_sampling_costs_as_much_as_the_longest_completions(call, tiny_model):
    """Of 8 and of 15 decoded tokens: what the prompts cost, and so much a token."""
    costs = {}
    for tokens in (2, 9, 16):
        more = {"max-new-tokens": tokens, "rollout.dtype": "bfloat16", "importance-cap": 2}
        code, out, err = call(aot, *flags(tiny_model.folder, **more), "--programs", "begin", "--json")
        assert code == 0, err
        costs[tokens] = json.loads(out.splitlines()[-1])["programs"]["begin"]
    first, second = (costs[b]["flops"] - costs[a]["flops"] for a, b in ((2, 9), (9, 16)))
    weights = sum(x.size for x in jax.tree.leaves(abstract_params(TINY)))
    # 32 completions on four devices; attention adds a little that grows with the ring of keys.
    assert 7 * 2 * 32 * weights / 4 * 0.9 < first < 7 * 2 * 32 * weights / 4 * 2
    assert second == pytest.approx(first, rel=0.5)


@needs_libtpu
def test_what_does_not_fit_exits_with_one_and_a_table(call, tiny_model, monkeypatch):
    small = chips.CHIPS["v5e"].__class__(1e5, 1.0, 1.0, 1.0, "made up")
    monkeypatch.setattr(chips, "CHIPS", {"v5e": small})
    code, out, _ = call(aot, *flags(tiny_model.folder), "--programs", "finish")
    assert code == 1
    assert "does not fit: finish needs 0.00 GB of 0 GB" in out
    assert "TFLOP" in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": "v9:2x2"}, "topology is 'v9:2x2', accepted is one of v5e, v5p, v6e with its sides"),
        ({"topology": "v5e"}, "topology is 'v5e', accepted is one of v5e, v5p, v6e with its sides"),
        ({"topology": "v5e:3x5"}, "topology is 'v5e:3x5', which libtpu refuses"),
        ({"mesh.fsdp": 4}, "mesh is data=1, fsdp=4, tensor=2: the product must be the number of devices, which is 4"),
        ({"micro-batches": 3}, "prompts_per_step is 8: accepted is a multiple of 6"),
        ({"mesh.fsdp": 1, "mesh.tensor": 4}, "mesh axis tensor is 4: accepted is a divisor of num_key_value_heads (2)"),
        ({"programs": "updates"}, "programs are ('updates',), accepted are one or more of"),
    ],
)
@needs_libtpu
def test_a_mistake_names_the_numbers(call, tiny_model, changes, message):
    code, out, err = call(aot, *flags(tiny_model.folder, **changes))
    assert (code, out) == (2, "")
    assert message in " ".join(err.replace("│", "").split())


def test_without_libtpu_the_command_says_how_to_get_it(call, tiny_model, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = call(aot, *flags(tiny_model.folder))
    assert code == 2
    assert err == "error: libtpu, the TPU compiler, is not installed: accepted is pip install libtpu\n"


@pytest.mark.parametrize(
    ("error", "bytes_needed"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 16.50G of 15.75G hbm.", 16.5 * 2**30),
        (
            "RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (19.52G) exceeds available HBM (15.75G)",
            19.52 * 2**30,
        ),
        ("RESOURCE_EXHAUSTED: no room for something else", None),
        ("INTERNAL: Used 16.50G of 15.75G hbm", None),
    ],
)
def test_what_a_program_needs_that_the_compiler_refuses(error, bytes_needed):
    assert programs._needed(error) == bytes_needed
