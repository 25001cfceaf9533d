"""The lab's policy: a small Llama, and a supervised start that ends when it is as good as asked for."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from experiments.lab.task import VOCABULARY, Sums
from rlvr_jax.errors import UserError
from rlvr_jax.models import ModelConfig, init_params, logits

MODEL = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)
"""83,072 parameters."""


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What is compiled into a supervised start."""

    model: ModelConfig = MODEL
    task: Sums = Sums()
    batch: int = 256
    learning_rate: float = 4e-3
    most_steps: int = 2000


class Base(NamedTuple):
    """A policy before reinforcement learning."""

    params: PyTree
    success_rate: Float[Array, ""]
    """Mean over the held-out questions, exact."""
    steps: Int[Array, ""]


class Skill(NamedTuple):
    """What a policy can do, without sampling noise."""

    log_success: Float[Array, " Q"]
    """Log-probability of the right completion of each question: of the policy's success on it."""
    greedy: Bool[Array, " Q"]
    """Whether the most likely token is the right one all along."""


def skill(params: PyTree, questions: Int[Array, " Q"], *, model: ModelConfig, task: Sums) -> Skill:
    answers = task.answers(questions)
    prompts = task.prompts(questions)
    sequences = jnp.concatenate([prompts, answers.tokens], 1)
    scores = jax.nn.log_softmax(logits(params, sequences, config=model)[:, prompts.shape[1] - 1 : -1])
    chosen = jnp.take_along_axis(scores, answers.tokens[..., None], -1)[..., 0]
    best = (scores.argmax(-1) == answers.tokens) | ~answers.mask
    return Skill(jnp.where(answers.mask, chosen, 0.0).sum(-1), best.all(-1))


def warm_start(success_rate: float, heterogeneity: float, seed: int, settings: WarmStart) -> Base:
    """Supervised training up to the first step at which the mean held-out success rate is at least `success_rate`.

    A label is that of another, random question with probability `heterogeneity` times the question's level (see
    `Sums.levels`), so that at 1 the policy's success falls from that of clean labels to about 0 over the questions.
    Raises UserError for values outside of [0, 1] and where the rate is not reached within `most_steps`.
    """
    for name, value in (("success_rate", success_rate), ("heterogeneity", heterogeneity)):
        if not 0 <= value <= 1:
            raise UserError(f"{name} is {value}, accepted are values from 0 to 1")
    base = _warm_start(jnp.float32(success_rate), jnp.float32(heterogeneity), seed, settings=settings)
    if base.success_rate < success_rate:
        raise UserError(
            f"success_rate is {success_rate} at heterogeneity {heterogeneity}: accepted is what {settings.most_steps} "
            f"supervised steps reach, which is {float(base.success_rate):.3f}"
        )
    return base


@functools.partial(jax.jit, static_argnames=("settings", "seed"))
def _warm_start(
    success_rate: Float[Array, ""], heterogeneity: Float[Array, ""], seed: int, *, settings: WarmStart
) -> Base:
    model, task = settings.model, settings.task
    train, held_out = map(jnp.asarray, task.split())
    optimizer = optax.adam(settings.learning_rate)
    params = init_params(model, seed)

    def loss(params: PyTree, questions: Array, labels: Array) -> Array:
        answers, prompts = task.answers(labels), task.prompts(questions)
        scores = logits(params, jnp.concatenate([prompts, answers.tokens], 1), config=model)[
            :, prompts.shape[1] - 1 : -1
        ]
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, answers.tokens)
        return jnp.mean(losses, where=answers.mask)

    def unfinished(carry: tuple) -> Bool[Array, ""]:
        _, _, rate, step = carry
        return (rate < success_rate) & (step < settings.most_steps)

    def step(carry: tuple) -> tuple:
        params, state, _, step = carry
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), step), 3)
        questions, others = (train[jax.random.randint(key, (settings.batch,), 0, len(train))] for key in keys[:2])
        wrong = jax.random.uniform(keys[2], questions.shape) < heterogeneity * task.levels(questions)
        updates, state = optimizer.update(jax.grad(loss)(params, questions, jnp.where(wrong, others, questions)), state)
        params = optax.apply_updates(params, updates)
        return params, state, _rate(params), step + 1

    def _rate(params: PyTree) -> Array:
        return jnp.exp(skill(params, held_out, model=model, task=task).log_success).mean()

    start = (params, optimizer.init(params), _rate(params), jnp.int32(0))
    params, _, rate, steps = jax.lax.while_loop(unfinished, step, start)
    return Base(params, rate, steps)


def stacked(bases: list[Base]) -> PyTree:
    """Parameters of several bases on a new leading axis, on the host."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(base.params for base in bases))
