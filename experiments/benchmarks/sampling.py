"""Completions of a long-tailed length, sampled by us and by transformers' generate: the same model, prompts, lengths.

Float32, temperature 1, the whole vocabulary; the end of each completion is given, so that all sides write the same
number of tokens. Each side has a process of its own, and they take turns. A token counts when it belongs to a
completion; the time includes the prompts. Exit status 1 when a floor is missed.
"""

import concurrent.futures
import dataclasses
import importlib.util
import multiprocessing
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.step import matrix_product_gflops
from experiments.command import print_json
from rlvr_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class SamplingBenchmark:
    """Time sampling beside transformers' generate."""

    model: str = "embedded:smollm2-135m-instruct"
    prompts: int = 16
    samples: int = 8
    shortest_prompt: int = 64
    longest_prompt: int = 128
    mean_length: int = 48
    """Of completions, which are distributed log-normally."""
    max_length: int = 128
    slots: int | None = None
    """Completions that we decode at a time; default: all."""
    repeats: int = 5
    """Timed after a first call that compiles; the median counts."""
    transformers: bool = True
    """Time transformers too, which needs torch."""
    transformers_floor: float = 4.0
    """Times transformers' tokens per second."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""

    def __post_init__(self) -> None:
        for name, least in {"prompts": 1, "samples": 1, "shortest_prompt": 1, "max_length": 2, "repeats": 1}.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}, accepted is {least} or more")
        if self.longest_prompt < self.shortest_prompt:
            raise UserError(f"longest_prompt is {self.longest_prompt}, accepted is {self.shortest_prompt} or more")
        if not 1 <= self.mean_length <= self.max_length:
            raise UserError(f"mean_length is {self.mean_length}, accepted is from 1 to {self.max_length}")
        if self.slots is not None and self.slots < 1:
            raise UserError(f"slots is {self.slots}, accepted is 1 or more")


@dataclasses.dataclass(frozen=True)
class Work:
    """What every side is given."""

    tokens: np.ndarray
    """`[P, Tp]`, padded on the right."""
    mask: np.ndarray
    lengths: np.ndarray
    """`[P, G]` of the completions."""


def make_work(arguments: SamplingBenchmark, vocabulary: int) -> Work:
    """Prompts of random tokens, and lengths: log-normal, spread 0.7, cut at `max_length`."""
    generator = np.random.default_rng(0)
    prompt_lengths = generator.integers(arguments.shortest_prompt, arguments.longest_prompt + 1, arguments.prompts)
    mask = np.arange(arguments.longest_prompt) < prompt_lengths[:, None]
    tokens = np.where(mask, generator.integers(100, vocabulary - 100, mask.shape), 0).astype(np.int32)
    spread = np.exp(generator.normal(0.0, 0.7, (arguments.prompts, arguments.samples)))
    # The cut takes some away, so the scale that gives the mean is searched.
    low, high = 1.0, 4.0 * arguments.mean_length
    for _ in range(40):
        scale = (low + high) / 2
        lengths = np.clip(np.rint(scale * spread), 1, arguments.max_length).astype(np.int32)
        low, high = (scale, high) if lengths.mean() < arguments.mean_length else (low, scale)
    return Work(tokens, mask, lengths)


def decode_work(lengths: np.ndarray, slots: int, max_length: int) -> tuple[int, int]:
    """(tokens that are kept, tokens that are run) by our decoding loop, which starts after each first token."""
    from rlvr_jax.sampling.slots import stages

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


class Ours:
    """Our sampler in this process."""

    def __init__(self, arguments: SamplingBenchmark):
        import jax

        from rlvr_jax.models import load_params, open_model
        from rlvr_jax.records import Prompts
        from rlvr_jax.sampling import SamplingSettings
        from rlvr_jax.sharding import MeshShape, make_mesh

        self.arguments, self.model = arguments, open_model(arguments.model)
        self.params = load_params(self.model.folder, self.model.config, make_mesh(MeshShape(), jax.devices()[:1]))
        self.work = make_work(arguments, self.model.config.vocab_size)
        self.settings = SamplingSettings(
            self.model.config, arguments.samples, arguments.max_length, slots=arguments.slots
        )
        self.prompts = Prompts(self.work.tokens, self.work.mask, np.arange(arguments.prompts, dtype=np.uint32))

    def seconds(self, lengths: np.ndarray | None = None) -> float:
        """Of one call, compiled before."""
        import jax
        import jax.numpy as jnp

        from rlvr_jax.sampling import Request, sample

        lengths = self.work.lengths if lengths is None else lengths
        nothing, no_stops = np.zeros(0, np.int32), np.array([-1], np.int32)
        request = Request(
            nothing, self.prompts, no_stops, jnp.uint32(0), jnp.int32(0), jnp.float32(1.0), limits=lengths
        )
        started = time.perf_counter()
        rollouts = sample(self.params, request, settings=self.settings)
        mask = jax.block_until_ready(rollouts.mask)
        ended = time.perf_counter()
        np.testing.assert_array_equal(np.asarray(mask).sum(-1), lengths)
        return ended - started

    def gflops_when_full(self) -> tuple[float, float]:
        """Rate of decoding with all slots full, and of this machine's matrix product right after."""
        import jax

        steps = min(16, self.arguments.max_length - 1)
        config, one = self.model.config, np.ones_like(self.work.lengths)
        taken = min(self.seconds(one * (steps + 1)) for _ in range(2)) - min(self.seconds(one) for _ in range(2))
        weights = sum(x.size for x in jax.tree.leaves(self.params))
        if not config.tie_word_embeddings:
            weights -= config.vocab_size * config.hidden_size  # looked up, not multiplied
        keys = self.work.mask.sum(-1).mean() + steps / 2
        attention = 2 * config.num_attention_layers * config.num_heads * config.head_dim * keys
        return 2e-9 * one.size * steps * (weights + attention) / taken, matrix_product_gflops()


class Transformers:
    """transformers' generate, of all completions at once, on the same weights."""

    def __init__(self, arguments: SamplingBenchmark):
        import torch
        from transformers import AutoModelForCausalLM

        from rlvr_jax.models import open_model

        model = open_model(arguments.model)
        self.arguments, self.work = arguments, make_work(arguments, model.config.vocab_size)
        self.model = AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32).eval()

    def seconds(self) -> float:
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        tokens, mask = (np.repeat(x, self.arguments.samples, 0) for x in (self.work.tokens, self.work.mask))
        # It takes prompts that are padded on the left.
        order = np.argsort(mask, -1, kind="stable")
        tokens, mask = (torch.tensor(np.take_along_axis(x, order, -1)).long() for x in (tokens, mask))
        ends = torch.tensor(self.work.lengths.ravel()) + tokens.shape[1]

        class AtItsLength(StoppingCriteria):
            def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
                return input_ids.shape[1] >= ends

        started = time.perf_counter()
        with torch.no_grad():
            found = self.model.generate(
                input_ids=tokens,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=self.arguments.max_length,
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([AtItsLength()]),
            )
        ended = time.perf_counter()
        assert found.shape[1] == tokens.shape[1] + self.work.lengths.max()
        return ended - started


_side: Ours | Transformers | None = None
"""Of this worker process."""


def _start(side: type, arguments: SamplingBenchmark) -> None:
    global _side
    _side = side(arguments)
    _side.seconds()


def _seconds() -> float:
    return _side.seconds()


def _gflops_when_full() -> tuple[float, float]:
    return _side.gflops_when_full()


def benchmark_sampling(arguments: SamplingBenchmark) -> int:
    """Prints the table; 1 when a floor is missed."""
    sides: dict[str, type] = {"rlvr_jax": Ours}
    if arguments.transformers:
        if importlib.util.find_spec("torch") is None:
            raise UserError("transformers' generate needs torch: pip install torch, or give --no-transformers")
        sides["transformers"] = Transformers
    spawn = multiprocessing.get_context("spawn")
    pools = {name: concurrent.futures.ProcessPoolExecutor(1, spawn) for name in sides}
    try:
        for name, side in sides.items():
            pools[name].submit(_start, side, arguments).result()
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(arguments.repeats):
            for name, pool in pools.items():
                seconds[name].append(pool.submit(_seconds).result())
        decoding, product = pools["rlvr_jax"].submit(_gflops_when_full).result()
    finally:
        for pool in pools.values():
            pool.shutdown()
    return report(arguments, seconds, decoding, product)


def report(arguments: SamplingBenchmark, seconds: dict[str, list[float]], decoding: float, product: float) -> int:
    """The figures of a run; ratios are medians of what was measured turn by turn."""
    lengths = make_work(arguments, 1000).lengths
    tokens = int(lengths.sum())
    kept, run = decode_work(lengths, arguments.slots or lengths.size, arguments.max_length)
    figures = {
        "tokens": tokens,
        "tokens_per_second": {name: tokens / float(np.median(values)) for name, values in seconds.items()},
        "seconds": seconds,
        "useful_share": kept / run,
        "decode_gflops": decoding,
        "matrix_product_gflops": product,
        "roofline_fraction": decoding / product,
    }
    for name in seconds:
        if name != "rlvr_jax":
            turns = [other / own for own, other in zip(seconds["rlvr_jax"], seconds[name], strict=True)]
            figures[f"ratio_to_{name}"] = float(np.median(turns))
    missed = figures.get("ratio_to_transformers", arguments.transformers_floor) < arguments.transformers_floor
    if arguments.json:
        print_json(figures)
        return int(missed)
    table = Table(
        caption=f"{lengths.size} completions of {arguments.prompts} prompts, {tokens} tokens, at most "
        f"{lengths.max()}. Of the tokens run, {figures['useful_share']:.0%} are kept. With all slots full, decoding "
        f"runs at {decoding:.0f} of the matrix product's {product:.0f} GFLOP/s ({decoding / product:.0%})."
    )
    for column in ("", "tokens/s", "seconds", "least", "most", "ours is faster by"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in seconds.items():
        ratio = figures.get(f"ratio_to_{name}")
        table.add_row(
            name,
            f"{figures['tokens_per_second'][name]:.0f}",
            *(f"{value:.2f}" for value in (np.median(values), min(values), max(values))),
            "" if ratio is None else f"{ratio:.2f}x",
        )
    Console().print(table)
    return int(missed)
