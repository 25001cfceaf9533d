"""Completions of a long-tailed length, sampled by us and by transformers' generate: the same model, prompts, lengths.

Float32, temperature 1, the whole vocabulary; the end of each completion is given, so that all sides write the same
number of tokens. A token counts when it belongs to a completion; the time includes the prompts. Exit status 1 when a
floor is missed.
"""

import dataclasses
import functools
import time
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.peers.transformers import sample as transformers_sample
from experiments.benchmarks.turns import OURS, Measured, Peer, Side, Turn, chosen, report, take_turns
from experiments.benchmarks.work import Work, WorkSettings, forward_flops, make_work, matrix_product_gflops
from rlvr_jax.errors import UserError
from rlvr_jax.models import Model, load_params, open_model
from rlvr_jax.records import Prompts
from rlvr_jax.sampling import Request, SamplingSettings, sample
from rlvr_jax.sampling.slots import stages
from rlvr_jax.sharding import MeshShape, make_mesh

PEERS = {"transformers": Peer(transformers_sample, ("torch",))}


@dataclasses.dataclass(frozen=True)
class SamplingBenchmark(WorkSettings):
    """Time sampling beside transformers' generate."""

    slots: int | None = None
    """Completions that we decode at a time; default: all."""
    repeats: int = 5
    """Timed after a first call that compiles; the median counts."""
    peers: tuple[Literal["transformers"], ...] | None = None
    """Beside whom; default: all that are installed."""
    transformers_floor: float = 4.0
    """Times transformers' tokens per second."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots is not None and self.slots < 1:
            raise UserError(f"slots is {self.slots}, accepted is 1 or more")


def decode_work(lengths: np.ndarray, slots: int, max_length: int) -> tuple[int, int]:
    """(tokens that are kept, tokens that are run) by our decoding loop, which starts after each first token."""
    waiting = list(lengths.ravel() - 1)
    running: list[int] = []
    kept = run = 0
    first, rest = stages(min(slots, len(waiting)), max_length)
    for width, few in (*first, *rest):
        while True:
            # A completion of one token has its slot for a step.
            while waiting and len(running) < width:
                running.append(waiting.pop(0))
            active = [left for left in running if left > 0]
            if not waiting and len(active) <= few:
                break
            kept, run = kept + len(active), run + width
            running = [left - 1 for left in running if left > 1]
        running = active
    return kept, run


def ours(model: Model, work: Work, slots: int | None, turn: Turn) -> dict[str, Any]:
    """Our sampler; then the rate of decoding with all slots full, and of this machine's matrix product right after."""
    config, samples, max_length = model.config, work.lengths.shape[1], work.completions.shape[2]
    params = load_params(model.folder, config, make_mesh(MeshShape(), jax.devices()[:1]))
    settings = SamplingSettings(config, samples, max_length, slots=slots)
    prompts = Prompts(work.tokens, work.mask, np.arange(len(work.tokens), dtype=np.uint32))
    nothing, no_stops = np.zeros(0, np.int32), np.array([-1], np.int32)

    def seconds(lengths: np.ndarray) -> float:
        request = Request(nothing, prompts, no_stops, jnp.uint32(0), jnp.int32(0), jnp.float32(1.0), limits=lengths)
        started = time.perf_counter()
        mask = jax.block_until_ready(sample(params, request, settings=settings).mask)
        ended = time.perf_counter()
        np.testing.assert_array_equal(np.asarray(mask).sum(-1), lengths)
        return ended - started

    while turn():
        seconds(work.lengths)
    one = np.ones_like(work.lengths)
    long = one * min(17, max_length)
    taken = min(seconds(long) for _ in range(2)) - min(seconds(one) for _ in range(2))
    flops = forward_flops(config, work.mask.sum(-1), long) - forward_flops(config, work.mask.sum(-1), one)
    return {"decode_gflops": 1e-9 * flops / taken, "matrix_product_gflops": matrix_product_gflops()}


def benchmark_sampling(arguments: SamplingBenchmark) -> int:
    """Prints the table; 1 when a floor is missed."""
    model = open_model(arguments.model)
    work = make_work(arguments, model.config.vocab_size)
    sides: dict[str, Side] = {OURS: functools.partial(ours, model, work, arguments.slots)}
    for name, peer in chosen(PEERS, arguments.peers).items():
        sides[name] = functools.partial(peer.side, model.folder, work)
    measured = take_turns(sides, arguments.repeats)
    figures = figures_of(measured, work, arguments.slots)
    caption = (
        f"{work.lengths.size} completions of {arguments.prompts} prompts, at most {work.lengths.max()} tokens. Of the "
        f"tokens run, {figures['useful_share']:.0%} are kept. With all slots full, decoding runs at "
        f"{figures['decode_gflops']:.0f} of the matrix product's {figures['matrix_product_gflops']:.0f} GFLOP/s "
        f"({figures['roofline_fraction']:.0%})."
    )
    floors = {f"ratio_to_{name}": getattr(arguments, f"{name}_floor") for name in PEERS}
    return report(figures, {"sampling": measured.seconds}, floors, caption=caption, json=arguments.json)


def figures_of(measured: Measured, work: Work, slots: int | None) -> dict[str, Any]:
    """What the seconds of a run mean."""
    tokens, of_ours = int(work.lengths.sum()), measured.figures[OURS]
    kept, run = decode_work(work.lengths, slots or work.lengths.size, work.completions.shape[2])
    return {
        "tokens": tokens,
        "tokens_per_second": measured.rates(tokens),
        "seconds": measured.seconds,
        **measured.ratios(),
        "peak_bytes": measured.peaks(),
        "useful_share": kept / run,
        "decode_gflops": of_ours["decode_gflops"],
        "matrix_product_gflops": of_ours["matrix_product_gflops"],
        "roofline_fraction": of_ours["decode_gflops"] / of_ours["matrix_product_gflops"],
    }
