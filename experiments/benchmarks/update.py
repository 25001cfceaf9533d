"""One update beside torch's: forward, backward, clipping by the global norm, AdamW; float32, the whole model.

Two works: groups of completions of unequal length (`make_work`), of which torch runs each beside its own copy of its
prompt, padded, as TRL does, with logits for the completion alone; and sequences that share nothing and have no pads.
Ours is `rlvr_jax.training.update`. A token counts when it is one of a completion. Both sides tell the norm of their
first gradient, so that they are seen to do the same. About 20 minutes on two cores. Exit status 1 when a floor is
missed, when these norms differ, or when our gradient on a part of the work differs from that of the same completions
each with a prompt of its own.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.peers.torch import update as torch_update
from experiments.benchmarks.turns import OURS, Measured, Peer, Side, Turn, chosen, report, take_turns
from experiments.benchmarks.work import (
    Work,
    WorkSettings,
    dense_work,
    forward_flops,
    make_work,
    matrix_product_gflops,
)
from rlvr_jax.errors import UserError
from rlvr_jax.models import Model, load_params, open_model
from rlvr_jax.objectives import OBJECTIVES
from rlvr_jax.records import Batch, Prompts, Rollouts
from rlvr_jax.sharding import MeshShape, make_mesh
from rlvr_jax.training import UpdateSettings, init_state, loss_and_gradients, make_batch, make_optimizer, update
from rlvr_jax.training.optimizer import OptimizerSettings

PEERS = {"torch": Peer(torch_update, ("torch",))}
OBJECTIVE = OBJECTIVES["sign"]
OPTIMIZER = OptimizerSettings(
    learning_rate=1e-6, warmup_steps=0, weight_decay=0.0, beta1=0.9, beta2=0.95, max_gradient_norm=1.0
)
PACKING = 4
"""Sizes that are compiled for the completions of a micro-batch."""
GRADIENT_DIFFERENCE = 1e-5
"""Largest, in relative norm, between groups and the same completions each with a prompt of its own."""
NORM_DIFFERENCE = 1e-3
"""Largest, of the norms of ours and torch's gradients: they add up in another order."""


@dataclasses.dataclass(frozen=True)
class UpdateBenchmark(WorkSettings):
    """Time updates beside torch's."""

    works: tuple[Literal["shared", "dense"], ...] = ("shared", "dense")
    """shared: groups of completions; dense: 8 sequences of 192 tokens."""
    micro_batches: int = 8
    """Pieces in which ours takes the groups."""
    torch_rows: int = 8
    """Completions that torch takes at a time: all its activations exist at once."""
    repeats: int = 2
    """Timed after a first update that compiles."""
    peers: tuple[Literal["torch"], ...] | None = None
    """Beside whom; default: all that are installed."""
    torch_floor: float = 2.0
    """Times torch's tokens per second on the groups."""
    dense_floor: float = 1.0
    """The same where nothing is shared."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("micro_batches", "torch_rows"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, accepted is 1 or more")
        if self.prompts % self.micro_batches:
            raise UserError(f"micro_batches is {self.micro_batches}, accepted is a divisor of prompts ({self.prompts})")
        if not self.works:
            raise UserError("works are none, accepted are shared, dense")

    def work(self, name: str, vocabulary: int) -> Work:
        return make_work(self, vocabulary) if name == "shared" else dense_work(vocabulary)


def ours(model: Model, work: Work, micro_batches: int, turn: Turn) -> dict[str, Any]:
    """One donated, compiled function."""
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    packing = PACKING if work.lengths.shape[1] > 1 else 1
    settings = UpdateSettings(model.config, OBJECTIVE.loss, OPTIMIZER, micro_batches, packing=packing)
    state = init_state(
        load_params(model.folder, model.config, mesh),
        0,
        config=model.config,
        optimizer=make_optimizer(OPTIMIZER),
        mesh=mesh,
    )
    batch, prefix = jax.device_put((batch_of(work), np.zeros(0, np.int32)))
    norms = []
    while turn():
        state, metrics = update(state, batch, prefix, jnp.float32(1.0), None, settings=settings, mesh=mesh)
        norms.append(float(jax.block_until_ready((state, metrics))[1]["gradient_norm"]))
    gflop = 3e-9 * forward_flops(model.config, work.mask.sum(-1), work.lengths)
    figures = {"gradient_norm": norms[0], "gflop": gflop, "matrix_product_gflops": matrix_product_gflops()}
    if work.lengths.shape[1] > 1:
        figures["gradient_difference"] = gradient_difference(state.params, model, work.part(2, 4))
    return figures


def batch_of(work: Work) -> Batch:
    """As the update takes it; the objective does not ask for log-probabilities at sampling."""
    mask, zeros = work.completion_mask, np.zeros(work.completions.shape, np.float32)
    prompts = Prompts(work.tokens, work.mask, np.arange(len(work.tokens), dtype=np.uint32))
    rollouts = Rollouts(work.completions, mask, zeros, zeros, zeros, np.zeros(work.lengths.shape, bool))
    return make_batch(prompts, rollouts, work.rewards, None, None, objective=OBJECTIVE)[0]


def gradient_difference(params: Any, model: Model, work: Work) -> float:
    """Relative norm, between packed groups and the same completions, padded, each with a prompt of its own."""

    def gradient(work: Work, packing: int) -> Any:
        settings = UpdateSettings(model.config, OBJECTIVE.loss, OPTIMIZER, packing=packing)
        compiled = jax.jit(functools.partial(loss_and_gradients, settings=settings, rows=1))
        return compiled(params, batch_of(work), np.zeros(0, np.int32), jnp.float32(1.0), None)[2]

    together, alone = gradient(work, PACKING), gradient(work.each_alone(), 1)
    return float(optax.tree.norm(jax.tree.map(jnp.subtract, together, alone)) / optax.tree.norm(alone))


def benchmark_update(arguments: UpdateBenchmark) -> int:
    """Prints the table; 1 when a floor is missed or a gradient is another."""
    model = open_model(arguments.model)
    peers = chosen(PEERS, arguments.peers)
    figures: dict[str, Any] = {}
    seconds = {}
    for name in arguments.works:
        work = arguments.work(name, model.config.vocab_size)
        sides: dict[str, Side] = {
            OURS: functools.partial(ours, model, work, arguments.micro_batches if name == "shared" else 1)
        }
        if "torch" in peers:
            sides["torch"] = functools.partial(peers["torch"].side, model.folder, work, OPTIMIZER, arguments.torch_rows)
        measured = take_turns(sides, arguments.repeats)
        seconds[name] = measured.seconds
        start = "" if name == "shared" else f"{name}_"
        figures |= {f"{start}{key}": value for key, value in figures_of(measured, int(work.lengths.sum())).items()}
    floors = {"ratio_to_torch": arguments.torch_floor, "dense_ratio_to_torch": arguments.dense_floor}
    wrong = [
        name
        for name, most in (
            ("gradient_difference", GRADIENT_DIFFERENCE),
            *((f"{start}norm_difference", NORM_DIFFERENCE) for start in ("", "dense_")),
        )
        if not figures.get(name, 0.0) <= most
    ]
    caption = " ".join(
        f"{key}: {value:.3g}." for key, value in figures.items() if key.endswith(("difference", "roofline_fraction"))
    )
    return int(report(figures, seconds, floors, caption=caption, json=arguments.json) or bool(wrong))


def figures_of(measured: Measured, tokens: int) -> dict[str, Any]:
    """Of one work."""
    of_ours = measured.figures[OURS]
    gflops = of_ours["gflop"] / float(np.median(measured.seconds[OURS]))
    norms = {name: figures["gradient_norm"] for name, figures in measured.figures.items()}
    return {
        "tokens": tokens,
        "tokens_per_second": measured.rates(tokens),
        "seconds": measured.seconds,
        **measured.ratios(),
        "peak_bytes": measured.peaks(),
        "gradient_norm": norms,
        "norm_difference": max(abs(norm / norms[OURS] - 1.0) for norm in norms.values()),
        "gflops": gflops,
        "matrix_product_gflops": of_ours["matrix_product_gflops"],
        "roofline_fraction": gflops / of_ours["matrix_product_gflops"],
        **({"gradient_difference": of_ours["gradient_difference"]} if "gradient_difference" in of_ours else {}),
    }
