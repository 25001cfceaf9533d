"""Whole training steps, split by phase, beside TRL's and google-tunix's: sampling, verdicts, update, optimiser.

Every side has the same questions in the same order, group size, length limit, stop tokens and verifier; float32, the
whole model, no KL, one update a step. Ours is the loop itself, `rlvr_jax.training.train`; the time of a step is that
from its beginning to the beginning of the next, whatever the loop does in between. Exit status 1 when a floor is
missed.
"""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
import tyro

from experiments.benchmarks.peers.trl import step as trl_step
from experiments.benchmarks.peers.tunix import step as tunix_step
from experiments.benchmarks.turns import OURS, Peer, Side, Turn, chosen, report, take_turns
from experiments.benchmarks.work import forward_flops, matrix_product_gflops
from experiments.presets import PRESETS
from rlvr_jax.evaluation import Pending, Roller
from rlvr_jax.evaluation.evaluate import EVALUATION_STEP
from rlvr_jax.training import TrainConfig, prepare, train

PEERS = {"trl": Peer(trl_step, ("trl", "torch", "datasets")), "tunix": Peer(tunix_step, ("tunix",))}
PHASES = ("sample_seconds", "verify_seconds", "update_seconds")


@dataclasses.dataclass(frozen=True)
class StepBenchmark:
    """Time the steps of a preset."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    repeats: int = 10
    """Steps that are timed, after one that compiles."""
    to_the_limit: bool = False
    """No token ends a completion, so that all sides write equally many."""
    peers: tuple[Literal["trl", "tunix"], ...] | None = None
    """Beside whom; default: all that are installed."""
    peer_rows: int = 32
    """Completions that peers' updates take at a time: all their activations exist at once."""
    trl_floor: float | None = None
    """Times faster than TRL."""
    tunix_floor: float | None = None
    json: bool = False
    """Print all figures as one JSON object on the last line."""


STEPS = {
    "step": StepBenchmark(PRESETS["smollm2_arithmetic"], repeats=5, trl_floor=5.0, tunix_floor=5.0),
    # Of the lengths of GSM8K: prompts of 94 tokens on average, of which 22 are shared.
    "step_long": StepBenchmark(
        TrainConfig(task="reasoning_gym:leg_counting", samples_per_prompt=8, max_new_tokens=64),
        repeats=3,
        to_the_limit=True,
        peer_rows=16,
        trl_floor=3.0,
        tunix_floor=3.0,
    ),
}


class _TakingTurns(Roller):
    """Waits for its turn at the beginning of each step of a run, and of the evaluation that ends it."""

    def __init__(self, roller: Roller, turn: Turn, to_the_limit: bool):
        # All that it holds, so that it samples as the run's own.
        vars(self).update(vars(roller))
        self._turn, self._sampled = turn, []
        if to_the_limit:
            self.stop_tokens = jnp.full_like(self.stop_tokens, -1)

    def dispatch(self, *args: Any, **kwargs: Any) -> Pending:
        in_training = kwargs["step"] != EVALUATION_STEP
        if in_training or self._sampled:
            self._turn()
        pending = super().dispatch(*args, **kwargs)
        if in_training:
            self._sampled.append((pending.prompts.mask, pending.rollouts.mask))
        return pending

    @property
    def flops(self) -> list[float]:
        """Of a forward pass over what each step sampled; not counted during the run, which it would keep waiting."""
        lengths = ((np.asarray(prompts).sum(-1), np.asarray(own).sum(-1)) for prompts, own in self._sampled)
        return [forward_flops(self.model.config, *pair, len(self.prefix)) for pair in lengths]


def ours(arguments: StepBenchmark, turn: Turn) -> dict[str, Any]:
    """The loop as it is, without checkpoints and with the smallest evaluations, at the beginning and at the end."""
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(
            arguments.config,
            steps=arguments.repeats + 1,
            evaluate_every=0,
            evaluation_questions=arguments.config.prompts_per_step,
            evaluation_batch=arguments.config.prompts_per_step,
            evaluation_samples=arguments.config.samples_per_prompt,
            checkpoint_every=0,
            output=Path(folder) / "run",
        )
        setup = prepare(config)
        roller = _TakingTurns(setup.roller, turn, arguments.to_the_limit)
        timings = train(config, dataclasses.replace(setup, roller=roller), name="benchmark").timings
    return {
        "timings": timings[1:],
        # Once to sample; and forward and backward, which counts twice, to update.
        "gflop": [4e-9 * flops for flops in roller.flops[1:]],
        "matrix_product_gflops": matrix_product_gflops(),
    }


def benchmark_step(arguments: StepBenchmark) -> int:
    """Prints the table; 1 when a floor is missed."""
    sides: dict[str, Side] = {OURS: functools.partial(ours, arguments)}
    for name, peer in chosen(PEERS, arguments.peers).items():
        sides[name] = functools.partial(
            peer.side, arguments.config, arguments.repeats + 1, arguments.peer_rows, arguments.to_the_limit
        )
    measured = take_turns(sides, arguments.repeats)
    of_ours, seconds = measured.figures[OURS], measured.seconds[OURS]
    phases = {name: [line[name] for line in of_ours["timings"]] for name in PHASES}
    gflops = float(np.median([work / taken for work, taken in zip(of_ours["gflop"], seconds, strict=True)]))
    figures = {
        **{name: spread(values) for name, values in {"step_seconds": seconds, **phases}.items()},
        "seconds": measured.seconds,
        **measured.ratios(),
        "peak_bytes": measured.peaks(),
        "recompilations": sum(line["compilations"] for line in of_ours["timings"]),
        "gflops": gflops,
        "matrix_product_gflops": of_ours["matrix_product_gflops"],
        "roofline_fraction": gflops / of_ours["matrix_product_gflops"],
    }
    caption = (
        f"{len(seconds)} steps, {figures['recompilations']} recompilations; "
        f"{gflops:.0f} of the matrix product's {figures['matrix_product_gflops']:.0f} GFLOP/s "
        f"({figures['roofline_fraction']:.0%})."
    )
    rows = {"step": measured.seconds, **{name.removesuffix("_seconds"): {OURS: phases[name]} for name in PHASES}}
    floors = {f"ratio_to_{name}": getattr(arguments, f"{name}_floor") for name in PEERS}
    return report(figures, rows, floors, caption=caption, json=arguments.json)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "least": min(values), "most": max(values)}
