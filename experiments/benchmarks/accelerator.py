"""Decoding and updates of real model shapes with random weights in bfloat16, as a share of what the device can do.

Decoding is bound by memory: its floor is the time to read the weights and the keys and values once a token, at the
bandwidth of a measured copy. An update is bound by products: its floor is those of a forward pass three times (twice
with adapters, for frozen weights have no gradient), at the rate of a measured bfloat16 product. Llama-3.1-8B is updated
by LoRA, so that one device holds it. Nothing is downloaded. Exit status 1 when a floor is missed.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.work import forward_flops
from experiments.command import print_json
from rlvr_jax.errors import UserError

SHAPES = {
    "qwen2.5-0.5b": (151_936, 896, 4864, 24, 14, 2, 64, True),
    "qwen3-1.7b": (151_936, 2048, 6144, 28, 16, 8, 128, True),
    "llama3.1-8b": (128_256, 4096, 14_336, 32, 32, 8, 128, False),
    "tiny": (512, 64, 128, 2, 4, 2, 16, True),
}
"""Vocabulary, width, MLP width, layers, heads, key heads, channels of a head, tied embeddings."""


@dataclasses.dataclass(frozen=True)
class AcceleratorBenchmark:
    """Time decoding and updates of model shapes on this device."""

    shapes: tuple[Literal["qwen2.5-0.5b", "qwen3-1.7b", "llama3.1-8b", "tiny"], ...] = (
        "qwen2.5-0.5b",
        "qwen3-1.7b",
        "llama3.1-8b",
    )
    batches: tuple[int, ...] = (64, 256)
    """Completions that are decoded at a time, in groups of 8."""
    prompt: int = 128
    tokens: int = 64
    """Decoded of each completion."""
    update_groups: int = 8
    """Prompts of an update, with 8 completions each."""
    update_tokens: int = 256
    """Of each completion of an update."""
    repeats: int = 3
    decode_floor: float = 0.6
    """Least share of the measured bandwidth."""
    update_floor: float = 0.45
    """Least share of the measured product's rate."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""

    def __post_init__(self) -> None:
        for batch in self.batches:
            if batch < 8 or batch % 8:
                raise UserError(f"batches has {batch}, accepted are multiples of 8")
        if self.tokens < 2:
            raise UserError(f"tokens is {self.tokens}, accepted is 2 or more")


def best_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Of `repeats` calls, after one that compiles."""
    import jax

    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def measured_rates(size: int, repeats: int) -> tuple[float, float]:
    """(operations a second of a bfloat16 product, bytes a second of a copy) of this device."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((size, size), jnp.bfloat16)
    chain = jax.jit(lambda x: jax.lax.fori_loop(0, 8, lambda _, y: (x @ y) * (1 / size), x))
    product = 16 * size**3 / best_seconds(lambda: chain(x), repeats)
    y = jnp.ones(16 * size**2, jnp.float32)
    again = jax.jit(lambda y: jax.lax.fori_loop(0, 8, lambda i, y: y + i.astype(jnp.float32), y))
    copied = 16 * y.nbytes / best_seconds(lambda: again(y), repeats)
    return product, copied


def make_shape(name: str) -> Any:
    from rlvr_jax.models import ModelConfig

    vocab, width, mlp, layers, heads, kv_heads, head_dim, tied = SHAPES[name]
    return ModelConfig(vocab, width, mlp, layers, heads, kv_heads, head_dim, 1e6, 1e-6, tied, compute_dtype="bfloat16")


def make_prompts(config: Any, count: int, length: int) -> Any:
    from rlvr_jax.records import Prompts

    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (count, length)).astype(np.int32)
    return Prompts(tokens, np.ones(tokens.shape, bool), np.arange(count, dtype=np.uint32))


def decoding(arguments: AcceleratorBenchmark, config: Any, params: Any, batch: int, bandwidth: float) -> dict:
    """Milliseconds a token of every completion, and the floor's share of them."""
    import jax
    import jax.numpy as jnp

    from rlvr_jax.sampling import Request, SamplingSettings, sample

    prompts = make_prompts(config, batch // 8, arguments.prompt)
    settings = SamplingSettings(config, 8, arguments.tokens)

    def seconds(tokens: int) -> float:
        limits = np.full((batch // 8, 8), tokens, np.int32)
        numbers = jnp.uint32(0), jnp.int32(0), jnp.float32(1.0)
        request = Request(np.zeros(0, np.int32), prompts, np.array([-1], np.int32), *numbers, limits)
        return best_seconds(lambda: sample(params, request, settings=settings), arguments.repeats)

    step = (seconds(arguments.tokens) - seconds(1)) / (arguments.tokens - 1)
    weights = sum(x.size for x in jax.tree.leaves(params))
    if not config.tie_word_embeddings:
        weights -= config.vocab_size * config.hidden_size  # looked up, not multiplied
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    # Of its completion a token reads every place that there may be; of its prompt, one copy for a group.
    keys_and_values = per_token * (batch * arguments.tokens + batch // 8 * arguments.prompt)
    floor = 2 * (weights + keys_and_values) / bandwidth
    return {"milliseconds": 1e3 * step, "tokens_per_second": batch / step, "share": floor / step}


def updating(arguments: AcceleratorBenchmark, config: Any, params: Any, lora: Any, rate: float) -> dict:
    """Seconds of an update, and the share of the product's rate. `params` are used up."""
    import jax
    import jax.numpy as jnp

    from rlvr_jax.models import init_adapters
    from rlvr_jax.objectives import Loss
    from rlvr_jax.records import Batch, Rollouts
    from rlvr_jax.sharding import MeshShape, make_mesh
    from rlvr_jax.training import UpdateSettings, init_state, make_optimizer, update
    from rlvr_jax.training.optimizer import OptimizerSettings

    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    shape = (arguments.update_groups, 8, arguments.update_tokens)
    prompts = make_prompts(config, shape[0], arguments.prompt)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, shape).astype(np.int32)
    flat, mask = np.zeros(shape, np.float32), np.ones(shape, bool)
    rollouts = Rollouts(tokens, mask, flat, flat, flat, mask[..., 0])
    batch = Batch(prompts, rollouts, flat[..., 0], flat + 1, mask)
    optimizer = OptimizerSettings(1e-6, 1, 0.0, 0.9, 0.95, 1.0)
    settings = UpdateSettings(config, Loss(), optimizer, remat="dots", lora=lora)
    trained, reference = (init_adapters(config, lora, 0), params) if lora else (params, None)
    state = init_state(trained, 0, config=config, optimizer=make_optimizer(optimizer), mesh=mesh, lora=lora)
    del params, trained
    nothing = np.zeros(0, np.int32)

    def step() -> Any:
        nonlocal state
        state, metrics = update(state, batch, nothing, jnp.float32(1.0), reference, settings=settings, mesh=mesh)
        return metrics

    seconds = best_seconds(step, arguments.repeats)
    # Backward costs twice as many, or with adapters, whose weights are few, as many.
    operations = (2 if lora else 3) * forward_flops(config, prompts.mask.sum(-1), mask.sum(-1))
    return {"seconds": seconds, "tokens_per_second": tokens.size / seconds, "share": operations / seconds / rate}


def benchmark_accelerator(arguments: AcceleratorBenchmark) -> int:
    """Prints the table; 1 when a floor is missed."""
    import jax
    import jax.numpy as jnp

    from rlvr_jax.models import LoraSettings
    from rlvr_jax.models.decoder import init_params

    device = jax.devices()[0]
    rate, bandwidth = measured_rates(512 if device.platform == "cpu" else 8192, arguments.repeats)
    rows = {}
    for name in arguments.shapes:
        config = make_shape(name)
        params = jax.jit(lambda config=config: jax.tree.map(lambda x: x.astype(jnp.bfloat16), init_params(config, 0)))()
        for batch in arguments.batches:
            rows[f"{name}, decode {batch}"] = decoding(arguments, config, params, batch, bandwidth)
        lora = LoraSettings(64) if name == "llama3.1-8b" else None
        if lora is None:
            params = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        rows[f"{name}, update"] = updating(arguments, config, params, lora, rate)
        del params
    missed = any(
        row["share"] < (arguments.update_floor if "seconds" in row else arguments.decode_floor) for row in rows.values()
    )
    figures = {"device": device.device_kind, "product_teraflops": rate / 1e12, "copy_gigabytes": bandwidth / 1e9}
    if arguments.json:
        print_json(figures | {"rows": rows})
        return int(missed)
    table = Table(
        caption=f"{device.device_kind}: bfloat16 product {rate / 1e12:.0f} TFLOP/s, copy {bandwidth / 1e9:.0f} GB/s"
    )
    for column in ("", "a step, ms", "tokens/s", "share of the floor"):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        step = row.get("milliseconds", 1e3 * row.get("seconds", 0.0))
        table.add_row(name, f"{step:.2f}", f"{row['tokens_per_second']:.0f}", f"{row['share']:.0%}")
    Console().print(table)
    return int(missed)
