"""What every side is given, and what it costs at least."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.models import ModelConfig, abstract_params, open_model
from rlvr_jax.tasks import PromptEncoder, Row, Verdict, make_task, verifier_of
from rlvr_jax.training import TrainConfig


@dataclasses.dataclass(frozen=True)
class WorkSettings:
    """Groups of completions of a long-tailed length."""

    model: str = "embedded:smollm2-135m-instruct"
    prompts: int = 16
    samples: int = 8
    shortest_prompt: int = 64
    longest_prompt: int = 128
    mean_length: int = 48
    """Of completions, which are distributed log-normally."""
    max_length: int = 128

    def __post_init__(self) -> None:
        for name, least in {"prompts": 1, "samples": 1, "shortest_prompt": 1, "max_length": 2}.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}, accepted is {least} or more")
        if self.longest_prompt < self.shortest_prompt:
            raise UserError(f"longest_prompt is {self.longest_prompt}, accepted is {self.shortest_prompt} or more")
        if not 1 <= self.mean_length <= self.max_length:
            raise UserError(f"mean_length is {self.mean_length}, accepted is from 1 to {self.max_length}")


@dataclasses.dataclass(frozen=True)
class Work:
    """Groups of completions."""

    tokens: np.ndarray
    """`[P, Tp]`, padded on the right."""
    mask: np.ndarray
    completions: np.ndarray
    """`[P, G, T]`, padded on the right."""
    lengths: np.ndarray
    """`[P, G]` of the completions."""
    rewards: np.ndarray
    """`[P, G]`, 0 or 1."""

    @property
    def completion_mask(self) -> np.ndarray:
        return np.arange(self.completions.shape[-1]) < self.lengths[..., None]

    def part(self, prompts: int, samples: int) -> "Work":
        """The first groups, and the first completions of each."""
        groups = (x[:prompts, :samples] for x in (self.completions, self.lengths, self.rewards))
        return Work(self.tokens[:prompts], self.mask[:prompts], *groups)

    def each_alone(self) -> "Work":
        """The same completions, each with its own copy of its prompt: as many groups of one."""
        prompts = (np.repeat(x, self.lengths.shape[1], 0) for x in (self.tokens, self.mask))
        groups = (x.reshape(-1, 1, *x.shape[2:]) for x in (self.completions, self.lengths, self.rewards))
        return Work(*prompts, *groups)

    def left_padded(self) -> tuple[np.ndarray, np.ndarray]:
        """Each completion's own copy of its prompt and the mask, `[P * G, Tp]`, as torch's models want it."""
        alone = self.each_alone()
        order = np.argsort(alone.mask, -1, kind="stable")
        return np.take_along_axis(alone.tokens, order, -1), np.take_along_axis(alone.mask, order, -1)


def make_work(settings: WorkSettings, vocabulary: int) -> Work:
    """Random tokens, and lengths: log-normal, spread 0.7, cut at `max_length`."""
    generator = np.random.default_rng(0)
    prompt_lengths = generator.integers(settings.shortest_prompt, settings.longest_prompt + 1, settings.prompts)
    mask = np.arange(settings.longest_prompt) < prompt_lengths[:, None]
    tokens = np.where(mask, generator.integers(*_ordinary(vocabulary), mask.shape), 0).astype(np.int32)
    spread = np.exp(generator.normal(0.0, 0.7, (settings.prompts, settings.samples)))
    # The cut takes some away, so the scale that gives the mean is searched.
    low, high = 1.0, 4.0 * settings.mean_length
    for _ in range(40):
        scale = (low + high) / 2
        lengths = np.clip(np.rint(scale * spread), 1, settings.max_length).astype(np.int32)
        low, high = (scale, high) if lengths.mean() < settings.mean_length else (low, scale)
    completions = generator.integers(*_ordinary(vocabulary), (*lengths.shape, settings.max_length))
    completions = np.where(np.arange(settings.max_length) < lengths[..., None], completions, 0).astype(np.int32)
    return Work(tokens, mask, completions, lengths, generator.integers(0, 2, lengths.shape).astype(np.float32))


def dense_work(vocabulary: int, sequences: int = 8, length: int = 192) -> Work:
    """Sequences of random tokens that share and leave out nothing: the first token of each is its prompt."""
    tokens = np.random.default_rng(0).integers(*_ordinary(vocabulary), (sequences, length)).astype(np.int32)
    return Work(
        tokens[:, :1],
        np.ones((sequences, 1), bool),
        tokens[:, None, 1:],
        np.full((sequences, 1), length - 1, np.int32),
        np.arange(sequences, dtype=np.float32)[:, None] % 2,
    )


def _ordinary(vocabulary: int) -> tuple[int, int]:
    """From and to: special tokens stand at either end."""
    special = min(100, vocabulary // 4)
    return special, vocabulary - special


@dataclasses.dataclass(frozen=True)
class Questions:
    """A preset's questions, for sides that have loops of their own."""

    folder: Path
    """Of the model."""
    tokenizer: Any
    rows: Sequence[Row]
    texts: Sequence[str]
    tokens: Sequence[Sequence[int]]
    """Of the texts, as ours reads them."""
    stop_tokens: list[int]
    max_new_tokens: int
    verify: Callable[[Sequence[Row], Sequence[str]], Sequence[Verdict]]


def questions(config: TrainConfig, steps: int) -> Questions:
    """Those of the first `steps` steps of a run."""
    model, task = open_model(config.model), make_task(config.task, config.data, config.prompt_format)
    rows = [task.row("train", i, config.seed) for i in range(steps * config.prompts_per_step)]
    encoder = PromptEncoder(task, model.tokenizer, rows)
    prompts = encoder.encode(rows)
    return Questions(
        model.folder,
        model.tokenizer,
        rows,
        ["".join(task.prompt(row, model.tokenizer)) for row in rows],
        [
            [*encoder.prefix.tolist(), *own[mask].tolist()]
            for own, mask in zip(prompts.tokens, prompts.mask, strict=True)
        ],
        encoder.stop_tokens(model.eos_token_ids).tolist(),
        config.max_new_tokens or task.max_new_tokens,
        verifier_of(task),
    )


def forward_flops(config: ModelConfig, prompts: np.ndarray, lengths: np.ndarray, prefix: int = 0) -> float:
    """Of one forward pass that computes nothing twice: the prefix once, and each prompt once for its group.

    `prompts` `[P]` are tokens of each prompt's own, `lengths` `[P, G]` those of its completions. Only completion tokens
    are predicted, and the last of each is not run. Matrix products alone; a backward pass costs twice as many.
    """
    shapes = abstract_params(config)
    looked_up = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    weights = sum(x.size for x in jax.tree.leaves(shapes)) - looked_up
    prompts, own = np.asarray(prompts, float), np.asarray(lengths, float) - 1
    run = prefix + prompts.sum() + own.sum()
    seen = _pairs(prefix) + (prompts * prefix + _pairs(prompts)).sum()
    seen += (own * (prefix + prompts[:, None]) + _pairs(own)).sum()
    attention = 2 * config.num_attention_layers * config.num_heads * config.head_dim * seen
    return 2 * float(run * weights + (own + 1).sum() * config.vocab_size * config.hidden_size + attention)


def _pairs(tokens: Any) -> Any:
    """Of a token and one that it sees, in a text of so many."""
    return tokens * (tokens + 1) / 2


def matrix_product_gflops(size: int = 2048, repeats: int = 5) -> float:
    """Best rate of a square float32 matrix product, the ceiling of everything else here."""
    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda x: x @ x)
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(product(x))
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds) / 1e9
