"""An objective as data: which advantage, which surrogate, which aggregation, how much KL, which samples count."""

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.objectives import kl, losses
from rlvr_jax.objectives.filters import Overlong, informative
from rlvr_jax.records import AnyArray

Signals = Mapping[str, Any]
"""What is known about a batch of rollouts, by the names that advantage functions give their parameters."""

_KL_SIGNALS = ("log_probabilities", "reference_log_probabilities", "completion_mask")


@dataclasses.dataclass(frozen=True)
class Using:
    """A function with some of its settings fixed: like functools.partial, but equal and hashable by value."""

    function: Callable[..., Any]
    settings: tuple[tuple[str, Hashable], ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **{**dict(self.settings), **kwargs})


def using(function: Callable[..., Any], **settings: Hashable) -> Callable[..., Any]:
    """`function` with these settings, on top of those it may have. Raises UserError for one that it does not have."""
    settings, function = _settings(function) | settings, _function(function)
    known = inspect.signature(function).parameters
    for name, value in settings.items():
        if name not in known:
            raise UserError(f"{name} is {value!r}, but {function.__name__} has no such setting")
    return Using(function, tuple(sorted(settings.items()))) if settings else function


def _function(call: Callable[..., Any]) -> Callable[..., Any]:
    return call.function if isinstance(call, Using) else call


def _settings(call: Callable[..., Any]) -> dict[str, Hashable]:
    return dict(call.settings) if isinstance(call, Using) else {}


def _parameters(call: Callable[..., Any]) -> dict[str, Any]:
    """Every parameter that is still open, by name, with its default or `inspect.Parameter.empty`."""
    parameters = inspect.signature(_function(call)).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in _settings(call)}


@dataclasses.dataclass(frozen=True)
class KL:
    """The pull towards a reference policy: `in_loss` or `in_reward`, see `kl`."""

    coefficient: float = 0.0
    estimator: kl.Estimator = "k3"
    where: Literal["loss", "reward"] = "loss"


@dataclasses.dataclass(frozen=True)
class Loss:
    """How advantages become a loss."""

    surrogate: Callable[..., Array] = losses.reinforce
    """One of `losses`, with settings by `using`."""
    aggregation: losses.Aggregation = "sequence_mean"
    length: int | None = None
    """The constant of `constant_length`; None: the width of the batch."""
    kl: KL = KL()
    importance_cap: float | None = None
    """Each token's policy loss is multiplied by `min(pi_behaviour / pi_sampler, importance_cap)`; None: by 1."""

    def __call__(
        self,
        log_probabilities: Float[AnyArray, "*batch G T"],
        behaviour_log_probabilities: Float[AnyArray, "*batch G T"],
        advantages: Float[AnyArray, "*batch G T"],
        mask: Bool[AnyArray, "*batch G T"],
        *,
        rewards: Float[AnyArray, "*batch G"] | None = None,
        reference_log_probabilities: Float[AnyArray, "*batch G T"] | None = None,
        sampler_log_probabilities: Float[AnyArray, "*batch G T"] | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """(sum, weight) of the loss over a batch of completions; see `losses.aggregate`.

        `behaviour_log_probabilities` are those that the surrogate's ratio is to. Where that is not the policy that
        sampled, as with `importance_cap`, `sampler_log_probabilities` are the sampler's own (decoupled PPO, arXiv
        2110.00641; TRL's vllm_importance_sampling_correction). Rewards are needed by some surrogates, the reference
        with a KL in the loss; UserError where they are missing.
        """
        more = {}
        if "rewards" in _parameters(self.surrogate):
            if rewards is None:
                raise UserError(f"surrogate is {self.name}: rewards must be given")
            more["rewards"] = rewards
        per_token = self.surrogate(log_probabilities, behaviour_log_probabilities, advantages, mask, **more)
        if self.importance_cap is not None:
            if sampler_log_probabilities is None:
                raise UserError(f"importance_cap is {self.importance_cap}: sampler_log_probabilities must be given")
            per_token = per_token * losses.importance_weights(
                behaviour_log_probabilities, sampler_log_probabilities, mask, cap=self.importance_cap
            )
        if self.kl_in_loss:
            if reference_log_probabilities is None:
                raise UserError(f"kl coefficient is {self.kl.coefficient}: reference_log_probabilities must be given")
            drawn_by = behaviour_log_probabilities if sampler_log_probabilities is None else sampler_log_probabilities
            # Masked places may hold anything; in a gradient 0 times infinity is NaN.
            clean = (jnp.where(mask, x, 0.0) for x in (log_probabilities, reference_log_probabilities, drawn_by))
            per_token = per_token + self.kl.coefficient * kl.in_loss(self.kl.estimator, *clean)
        return losses.aggregate(per_token, mask, self.aggregation, length=self.length)

    @property
    def name(self) -> str:
        """Of the surrogate."""
        return _function(self.surrogate).__name__

    @property
    def kl_in_loss(self) -> bool:
        return self.kl.coefficient != 0 and self.kl.where == "loss"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl.coefficient != 0 and self.kl.where == "reward"

    @property
    def has_ratio(self) -> bool:
        """Whether the surrogate compares the policy with the one that sampled, and so allows for their difference."""
        return self.name not in ("reinforce", "c2gspg")

    @property
    def clip_range(self) -> tuple[float, float] | None:
        """Token ratios outside of which a clipped surrogate has no gradient; None where nothing is clipped so."""
        if self.name not in ("ppo_clip", "fipo"):
            return None
        values = _parameters(self.surrogate) | _settings(self.surrogate)
        return 1.0 - values["clip_low"], 1.0 + values["clip_high"]


@dataclasses.dataclass(frozen=True)
class Objective:
    """An advantage and the loss that uses it, with what is done to rewards before and to samples after."""

    advantage: Callable[..., Any]
    """One of `advantages`, with settings by `using`; its parameters without default are what it needs."""
    loss: Loss = Loss()
    overlong: Overlong | None = None
    """Length penalty, added to the reward."""
    drop_uniform: bool = False
    """Groups whose rewards are all equal stay out of the loss and its denominator (DAPO's dynamic sampling)."""
    drop_truncated: bool = False
    """Completions that the length limit ended stay out of the loss; their rewards still count in their group."""
    start: Callable[[], Any] | None = None
    """Makes the first state of an advantage that remembers (its parameter `state`)."""
    formula: str = dataclasses.field(default="", compare=False)
    """The advantage or, where that is the point, the loss; for people."""
    source: str = dataclasses.field(default="", compare=False)
    """Paper or repository."""

    def __post_init__(self) -> None:
        shapes = self.overlong is not None or self.loss.kl_in_reward
        function = _function(self.advantage)
        # Where rewards are traced nothing else would stop them from being read as wrong answers.
        if shapes and getattr(function, "accepts", None) == "binary":
            raise UserError(
                f"{function.__name__} takes rewards of 0 and 1: neither an overlong penalty nor a KL in the reward fits"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the signals that must be there, besides `rewards`."""
        _, *others = _parameters(self.advantage).items()
        needed = [name for name, default in others if default is inspect.Parameter.empty]
        if self.overlong is not None:
            needed.append("lengths")
        if self.loss.kl_in_reward:
            needed += _KL_SIGNALS
        return tuple(dict.fromkeys(needed))

    def advantages(self, signals: Signals, state: Any = None) -> tuple[Float[Array, "..."], Any]:
        """Advantages `[..., G]`, or `[..., G, T]` where they differ by token, and the state afterwards.

        Pure and traceable. Raises UserError when a signal that is needed is missing.
        """
        signals = dict(signals) | ({"state": state} if state is not None else {})
        missing = [name for name in ("rewards", *self.needs) if name not in signals]
        if missing:
            name = _function(self.advantage).__name__
            raise UserError(f"{name} needs {', '.join(missing)}; given are {', '.join(signals)}")
        rewards = jnp.asarray(signals["rewards"], jnp.float32)
        if self.overlong is not None:
            rewards = rewards + self.overlong.penalty(signals["lengths"])
        if self.loss.kl_in_reward:
            penalty = kl.in_reward(self.loss.kl.estimator, *(signals[name] for name in _KL_SIGNALS))
            rewards = rewards - self.loss.kl.coefficient * penalty
        _, *others = _parameters(self.advantage)
        result = self.advantage(rewards, **{name: signals[name] for name in others if name in signals})
        return result if isinstance(result, tuple) else (result, state)

    def loss_mask(
        self,
        completion_mask: Bool[AnyArray, "*batch G T"],
        rewards: Float[AnyArray, "*batch G"],
        truncated: Bool[AnyArray, "*batch G"],
    ) -> Bool[Array, "*batch G T"]:
        """The tokens that take part in the loss."""
        mask = jnp.asarray(completion_mask)
        if self.drop_uniform:
            mask = mask & informative(rewards)[..., None, None]
        if self.drop_truncated:
            mask = mask & ~truncated[..., None]
        return mask

    def check(self, samples_per_prompt: int) -> None:
        """Raises UserError when the advantage cannot work with groups of this size and what rollouts tell."""

        def of_example(rewards: Array, tokens: Array, mask: Array) -> Array:
            signals = rollout_signals(rewards, tokens, tokens, mask) | {"reference_log_probabilities": tokens}
            return self.advantages(signals, None if self.start is None else self.start())[0]

        tokens = jax.ShapeDtypeStruct((2, samples_per_prompt, 3), jnp.float32)
        mask = jax.ShapeDtypeStruct(tokens.shape, jnp.bool_)
        jax.eval_shape(of_example, jax.ShapeDtypeStruct(tokens.shape[:2], jnp.float32), tokens, mask)


def rollout_signals(
    rewards: Float[AnyArray, "*batch G"],
    log_probabilities: Float[AnyArray, "*batch G T"],
    entropies: Float[AnyArray, "*batch G T"],
    completion_mask: Bool[AnyArray, "*batch G T"],
) -> dict[str, Array]:
    """The signals that every batch of rollouts has; log-probabilities and entropies of the policy that sampled."""
    completion_mask = jnp.asarray(completion_mask)
    return {
        "rewards": jnp.asarray(rewards),
        "log_probabilities": jnp.asarray(log_probabilities),
        "entropies": jnp.asarray(entropies),
        "completion_mask": completion_mask,
        "lengths": completion_mask.sum(-1).astype(jnp.float32),
        "sequence_log_probabilities": jnp.where(completion_mask, log_probabilities, 0.0).sum(-1),
    }
