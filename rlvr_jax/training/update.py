"""The policy update: one compiled function from (state, batch) to (state, metrics)."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from rlvr_jax.models import LoraSettings, ModelConfig, Remat, token_log_probabilities
from rlvr_jax.models.tree import as_rows
from rlvr_jax.objectives import Loss, kl
from rlvr_jax.objectives.losses import aggregate, importance_weights, weighted_mean
from rlvr_jax.records import AnyArray, Batch
from rlvr_jax.sharding import batch_shards
from rlvr_jax.training.optimizer import OptimizerSettings, make_optimizer
from rlvr_jax.training.state import TrainState, policy_params, state_shardings

Metrics = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class UpdateSettings:
    """What is compiled into an update; runs that differ only in advantage share the compiled function."""

    model: ModelConfig
    loss: Loss
    optimizer: OptimizerSettings
    micro_batches: int = 1
    remat: Remat = "none"
    lora: LoraSettings | None = None
    fused_attention: bool = True
    packing: int = 1
    """Sizes that are compiled for the completions of a micro-batch, up to padded; of these the smallest is run that
    holds all tokens. 1: padded always."""


@functools.partial(jax.jit, static_argnames=("settings", "mesh"), donate_argnames="state")
def update(
    state: TrainState,
    batch: Batch,
    prefix: Int[AnyArray, " Tq"],
    temperature: Float[Array, ""],
    reference: PyTree,
    objective: PyTree = None,
    *,
    settings: UpdateSettings,
    mesh: Mesh,
) -> tuple[TrainState, Metrics]:
    """One optimiser step on one batch; `state` is donated. `step` and `cursor` are the loop's to advance.

    With a loss or a gradient that is not finite the state stays what it was, and the metric `skipped` is 1; else
    `objective` is what an objective that remembers has after this batch.

    P must be a multiple of batch shards times micro-batches. `reference` are the parameters of the initial policy: the
    reference of a KL in the loss, and with LoRA the weights that the adapters in `state` belong to; `None` without
    either. The loss's denominator is that of the whole batch, so micro-batches and device shares give the same gradient
    as one piece.
    """
    optimizer = make_optimizer(settings.optimizer)
    loss, metrics, gradients = loss_and_gradients(
        state.params, batch, prefix, temperature, reference, settings=settings, rows=batch_shards(mesh), mesh=mesh
    )
    gradient_norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params, finite=finite)
    updated = dataclasses.replace(state, params=optax.apply_updates(state.params, updates), optimizer=optimizer_state)
    if objective is not None:
        kept = jax.tree.map(functools.partial(jnp.where, finite), objective, state.objective)
        updated = dataclasses.replace(updated, objective=kept)
    updated = jax.lax.with_sharding_constraint(
        updated, state_shardings(settings.model, optimizer, state.params, state.objective, mesh, settings.lora)
    )
    skipped = 1.0 - finite.astype(jnp.float32)
    return updated, {"loss": loss, "gradient_norm": gradient_norm, "skipped": skipped} | metrics


def loss_and_gradients(
    params: PyTree,
    batch: Batch,
    prefix: Int[AnyArray, " Tq"],
    temperature: Float[Array, ""],
    reference: PyTree,
    *,
    settings: UpdateSettings,
    rows: int,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, ""], Metrics, PyTree]:
    """The loss of a batch, metrics about its tokens, and the gradient with respect to `params`."""
    mask = batch.loss_mask
    _, weight = aggregate(jnp.zeros(mask.shape), mask, settings.loss.aggregation, length=settings.loss.length)
    log_probabilities_of = functools.partial(
        token_log_probabilities,
        config=settings.model,
        rows=rows,
        remat=settings.remat,
        mesh=mesh,
        fused_attention=settings.fused_attention,
    )

    def piece_loss(params: PyTree, piece: Batch, packed: int | None) -> tuple[Array, Metrics]:
        rollouts = piece.rollouts
        of = functools.partial(log_probabilities_of, mask=rollouts.mask, packed=packed)
        policy = policy_params(params, reference, settings.lora)
        log_probabilities = of(policy, prefix, piece.prompts, rollouts.tokens, temperature)
        reference_log_probabilities = None
        if settings.loss.kl_in_loss:
            reference_log_probabilities = jax.lax.stop_gradient(
                of(reference, prefix, piece.prompts, rollouts.tokens, temperature)
            )
        behaviour = rollouts.log_probabilities
        if settings.loss.importance_cap is not None:
            # What the optimiser did since is the ratio's to correct, what was there before it the weights'.
            old = piece.old_log_probabilities
            behaviour = jax.lax.stop_gradient(log_probabilities) if old is None else old
        total, _ = settings.loss(
            log_probabilities,
            behaviour,
            piece.advantages,
            piece.loss_mask,
            rewards=piece.rewards,
            reference_log_probabilities=reference_log_probabilities,
            sampler_log_probabilities=rollouts.log_probabilities,
        )
        sums = _token_sums(log_probabilities, behaviour, reference_log_probabilities, piece, settings.loss)
        return weighted_mean(total, weight), sums

    def gradient_of(params: PyTree, piece: Batch) -> tuple[tuple[Array, Metrics], PyTree]:
        sizes = _packed_sizes(piece.rollouts.mask.shape, rows, settings.packing)
        # The gradient is taken inside the branches: else what a backward pass needs would be kept for every size.
        branches = [
            jax.value_and_grad(functools.partial(piece_loss, packed=size), has_aux=True) for size in (*sizes, None)
        ]
        if not sizes:
            return branches[0](params, piece)
        most = as_rows(piece.rollouts.mask, rows).sum((1, 2, 3)).max()
        return jax.lax.switch((most > jnp.array(sizes)).sum(), branches, params, piece)

    if settings.micro_batches == 1:
        (loss, sums), gradients = gradient_of(params, batch)
    else:
        pieces = jax.tree.map(lambda x: _micro_batches(x, rows, settings.micro_batches), batch)

        def accumulate(carry: tuple, piece: Batch) -> tuple[tuple, None]:
            (loss, sums), gradients = gradient_of(params, piece)
            maximum = jnp.maximum(carry[1]["max"], sums["max"])
            added = jax.tree.map(jnp.add, carry, (loss, sums, gradients))
            added[1]["max"] = maximum
            return added, None

        zero = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(gradient_of, params, jax.tree.map(lambda x: x[0], pieces)),
        )
        (loss, sums, gradients), _ = jax.lax.scan(accumulate, (*zero[0], zero[1]), pieces)

    tokens = jnp.maximum(sums["tokens"], 1.0)
    metrics = {
        "clipped_share": sums["clipped"] / tokens,
        "kl": sums["kl"] / tokens,
        "sampler_difference_mean": sums["difference"] / tokens,
        "sampler_difference_max": sums["max"],
    }
    if settings.loss.importance_cap is not None:
        metrics |= {"importance_weight": sums["weight"] / tokens, "capped_share": sums["capped"] / tokens}
    return loss, metrics, gradients


def _token_sums(
    log_probabilities: Float[Array, "P G T"],
    behaviour_log_probabilities: Float[AnyArray, "P G T"],
    reference_log_probabilities: Float[Array, "P G T"] | None,
    piece: Batch,
    loss: Loss,
) -> Metrics:
    """Sums over tokens, divided only when all pieces are in."""
    rollouts, advantages = piece.rollouts, piece.advantages
    log_probabilities = jax.lax.stop_gradient(log_probabilities)
    difference = jnp.where(rollouts.mask, log_probabilities - rollouts.log_probabilities, 0.0)
    clipped = kl_sum = jnp.zeros(())
    if loss.clip_range is not None:
        low, high = loss.clip_range
        ratio = jnp.exp(jnp.where(rollouts.mask, log_probabilities - behaviour_log_probabilities, 0.0))
        outside = ((ratio > high) & (advantages > 0)) | ((ratio < low) & (advantages < 0))
        clipped = jnp.sum(outside & rollouts.mask, dtype=jnp.float32)
    if reference_log_probabilities is not None:
        per_token = kl.ESTIMATORS[loss.kl.estimator](log_probabilities, reference_log_probabilities)
        kl_sum = jnp.sum(jnp.where(rollouts.mask, per_token, 0.0))
    sums = {
        "tokens": rollouts.mask.sum().astype(jnp.float32),
        "clipped": clipped,
        "kl": kl_sum,
        "difference": jnp.abs(difference).sum(),
        "max": jnp.abs(difference).max(),
    }
    if loss.importance_cap is not None:
        uncapped = importance_weights(
            behaviour_log_probabilities, rollouts.log_probabilities, rollouts.mask, cap=jnp.inf
        )
        sums["weight"] = jnp.minimum(uncapped, loss.importance_cap).sum()
        sums["capped"] = jnp.sum(uncapped > loss.importance_cap, dtype=jnp.float32)
    return sums


def _packed_sizes(shape: tuple[int, ...], rows: int, levels: int) -> list[int]:
    """Tokens of a row that packed forms have, in steps of equal size, the padded form left out."""
    completions, tokens = math.prod(shape[:2]) // rows, math.prod(shape) // rows
    sizes = {math.ceil(tokens * i / levels) for i in range(1, levels)}
    return sorted(size for size in sizes if completions < size < tokens)


def _micro_batches(x: Array, rows: int, pieces: int) -> Array:
    """`[P, ...]` to `[pieces, P / pieces, ...]`, each piece taking its part of every device share."""
    split = x.reshape(rows, pieces, -1, *x.shape[1:])
    return split.swapaxes(0, 1).reshape(pieces, -1, *x.shape[1:])
