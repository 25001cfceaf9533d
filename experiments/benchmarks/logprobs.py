"""Memory and time of token log-probabilities and their gradient, in chunks of tokens beside all at once.

The vocabulary of Qwen 2.5 and 3 (151,936), 4 x 1,024 tokens: all logits at once are 2.5 GB in float32, and their
gradient as much again. Each form runs in a process of its own, so that the peaks of resident memory are its own; they
are counted above what the inputs take. Exit status 1 when chunks save less than `least_saving`, or give other values.
"""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import resource
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.command import print_json


@dataclasses.dataclass(frozen=True)
class LogProbsBenchmark:
    """Compare chunked log-probabilities with unchunked ones."""

    vocabulary: int = 151_936
    hidden: int = 256
    tokens: int = 4096
    chunk: int = 512
    """Tokens whose logits exist at a time; the default is that of training."""
    repeats: int = 1
    """Timed after a first call that compiles."""
    least_saving: float = 5.0
    """Times less memory that chunks must take."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One form in one process."""

    log_probabilities: np.ndarray
    gradient: np.ndarray
    """With respect to the unembedding, to which every chunk adds."""
    peak_bytes: int
    """Resident memory above that before the first call."""
    seconds: list[float]


def measure(arguments: LogProbsBenchmark, chunk: int) -> Measured:
    """Runs one form; must be the first to use memory in its process."""
    import jax
    import jax.numpy as jnp

    from rlvr_jax.models.head import chunked_log_probabilities

    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (arguments.tokens, arguments.hidden))
    unembedding = 0.1 * jax.random.normal(keys[1], (arguments.vocabulary, arguments.hidden))
    targets = jax.random.randint(keys[2], (arguments.tokens,), 0, arguments.vocabulary)
    jax.block_until_ready((hidden, unembedding, targets))

    def loss(hidden: jax.Array, unembedding: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = chunked_log_probabilities(hidden, unembedding, targets, jnp.float32(1.0), chunk)
        return -values.mean(), values

    step = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(arguments.repeats + 1):
        started = time.perf_counter()
        (_, values), gradients = jax.block_until_ready(step(hidden, unembedding))
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return Measured(np.asarray(values), np.asarray(gradients[1]), peak * 1024, seconds[1:])


def benchmark_logprobs(arguments: LogProbsBenchmark) -> int:
    """Prints both forms side by side; 1 when chunks save too little or change a value."""
    spawn = multiprocessing.get_context("spawn")
    forms = {"at once": arguments.tokens, "in chunks": arguments.chunk}
    measured = {}
    for name, chunk in forms.items():
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
            measured[name] = pool.submit(functools.partial(measure, arguments, chunk)).result()
    whole, chunked = measured.values()
    saving = whole.peak_bytes / chunked.peak_bytes
    difference = float(np.abs(whole.log_probabilities - chunked.log_probabilities).max())
    relative = float(np.linalg.norm(whole.gradient - chunked.gradient) / np.linalg.norm(whole.gradient))
    figures = {
        name: {"peak_bytes": form.peak_bytes, "seconds": float(np.median(form.seconds))}
        for name, form in measured.items()
    }
    if arguments.json:
        print_json({**figures, "saving": saving, "difference": difference, "gradient_difference": relative})
    else:
        table = Table(
            caption=f"{arguments.tokens} tokens, vocabulary {arguments.vocabulary}, width {arguments.hidden}; in "
            f"chunks of {arguments.chunk}: {saving:.1f} times less memory (at least {arguments.least_saving:g} asked), "
            f"values within {difference:.1e} nats, gradient within {relative:.1e} in relative norm."
        )
        for column in ("value and gradient", "peak memory, GB", "seconds"):
            table.add_column(column, justify="left" if column == "value and gradient" else "right")
        for name, row in figures.items():
            table.add_row(name, f"{row['peak_bytes'] / 1e9:.2f}", f"{row['seconds']:.2f}")
        Console().print(table)
    return int(saving < arguments.least_saving or difference > 1e-5 * np.abs(whole.log_probabilities).max())
