"""What is compared: objectives and their controls, grouped so that those of one shape are compiled together."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from experiments.lab.policy import MODEL, Base, WarmStart, stacked, warm_start
from experiments.lab.run import Optimizer, Program, Runs, Trace, simulate
from experiments.lab.task import Sums
from rlvr_jax.errors import UserError
from rlvr_jax.models import ModelConfig
from rlvr_jax.objectives import KL, Objective, named_objective


@dataclasses.dataclass(frozen=True)
class Lab:
    """Everything that the arms of one comparison share unless they say otherwise."""

    samples: int = 4
    """G, of each prompt."""
    prompts: int = 16
    """P, of each step."""
    steps: int = 200
    evaluate_every: int = 20
    success_rate: float = 0.2
    """Mean held-out success rate at which the supervised start ends."""
    heterogeneity: float = 0.0
    """Share of wrong labels at the hardest of ten levels of questions in the supervised start; 0: all are clean."""
    optimizer: Optimizer = "adam"
    learning_rate: float = 1e-4
    sgd_learning_rate: float = 0.01
    """Of plain SGD, which is not clipped."""
    max_gradient_norm: float = 1.0
    """Of Adam."""
    base_seed: int = 0
    """Of the supervised start, which all runs share."""
    model: ModelConfig = MODEL
    task: Sums = Sums()

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("prompts", 1), ("evaluate_every", 1), ("steps", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}, accepted are whole numbers from {least}")
        if self.steps % self.evaluate_every:
            raise UserError(f"steps is {self.steps}: accepted is a multiple of evaluate_every ({self.evaluate_every})")
        if self.optimizer not in ("adam", "sgd"):
            raise UserError(f"optimizer is {self.optimizer!r}, accepted are 'adam', 'sgd'")
        for name in ("learning_rate", "sgd_learning_rate", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}, accepted are positive numbers")

    @property
    def start(self) -> WarmStart:
        return WarmStart(self.model, self.task)

    @property
    def base(self) -> Base:
        return warm_start(self.success_rate, self.heterogeneity, self.base_seed, self.start)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One objective under one way of training."""

    name: str
    objective: Objective
    optimizer: Optimizer
    learning_rate: float
    max_gradient_norm: float
    prompts: int
    samples: int
    base: int = 0
    """Which of several bases it starts from."""

    def program(self, lab: Lab) -> Program:
        return Program(
            lab.model, lab.task, (self.objective,), self.optimizer, self.prompts, self.samples, lab.steps,
            lab.evaluate_every,
        )  # fmt: skip


def arm(
    lab: Lab,
    objective: str,
    *,
    name: str | None = None,
    optimizer: Optimizer | None = None,
    scale: float = 1.0,
    samples: int | None = None,
    kl: float = 0.0,
    base: int = 0,
) -> Arm:
    """A named objective in this lab: `scale` times its step size, with `samples` of fewer prompts, with a KL loss."""
    chosen = named_objective(objective)
    if chosen.start is not None or chosen.needs:
        raise UserError(f"objective is {objective!r}, accepted in the lab are those that need rewards alone")
    if kl:
        chosen = dataclasses.replace(chosen, loss=dataclasses.replace(chosen.loss, kl=KL(kl)))
    how, samples = optimizer or lab.optimizer, samples or lab.samples
    completions = lab.prompts * lab.samples
    if completions % samples:
        raise UserError(f"samples is {samples}: accepted is a divisor of the {completions} completions of a step")
    rate = lab.learning_rate if how == "adam" else lab.sgd_learning_rate
    norm = lab.max_gradient_norm if how == "adam" else np.inf
    return Arm(name or objective, chosen, how, scale * rate, norm, completions // samples, samples, base)


def controls(lab: Lab) -> list[Arm]:
    """Sign, the group means, and what could explain a difference between them without starvation.

    `2G / (G - 1)` is by how much Sign's mean update is longer than that of a centred group (see
    `rlvr_jax.starvation.expected_update`). Arms of other G have as many samples in a step, of fewer prompts.
    """
    longer = 2 * lab.samples / (lab.samples - 1)
    arms = [
        arm(lab, "sign"),
        arm(lab, "group_mean"),
        arm(lab, "group_mean_std"),
        arm(lab, "rloo"),
        arm(lab, "half_reference"),
        arm(lab, "reinforce"),
        arm(lab, "group_mean", name="group_mean, step x 2G/(G-1)", scale=longer),
        arm(lab, "dapo", name="dapo, mixed groups only"),
        *(arm(lab, name, name=f"{name}, KL 0.04", kl=0.04) for name in ("sign", "group_mean")),
    ]
    if lab.optimizer == "adam":
        arms += [arm(lab, name, name=f"{name}, SGD", optimizer="sgd") for name in _SGD]
        arms.append(arm(lab, "group_mean", name="group_mean, SGD, step x 2G/(G-1)", optimizer="sgd", scale=longer))
    for samples in (2 * lab.samples, 4 * lab.samples):
        if lab.prompts * lab.samples % samples == 0:
            arms += [arm(lab, name, name=f"{name}, G = {samples}", samples=samples) for name in ("sign", "group_mean")]
    return arms


_SGD = ("sign", "half_reference", "group_mean", "group_mean_std")


def run_arms(lab: Lab, arms: Sequence[Arm], seeds: Sequence[int], bases: Sequence[Base]) -> list[Trace]:
    """The traces of each arm, one run a seed; arms of one shape, loss and optimizer are compiled as one."""
    programs: dict[tuple, list[int]] = {}
    for i, each in enumerate(arms):
        # Only the loss is compiled in: which advantages there are is chosen run by run.
        key = (each.objective.loss, dataclasses.replace(each.program(lab), objectives=()))
        programs.setdefault(key, []).append(i)
    params, traces = stacked(list(bases)), {}
    console = Console(stderr=True)
    for (_, shape), members in track(
        programs.items(), f"{len(arms) * len(seeds)} runs", console=console, disable=not console.is_terminal
    ):
        objectives = tuple(dict.fromkeys(arms[i].objective for i in members))
        rows = [(seed, arms[i]) for i, seed in itertools.product(members, seeds)]
        runs = Runs(
            np.array([seed for seed, _ in rows], np.uint32),
            np.array([each.base for _, each in rows], np.int32),
            np.array([objectives.index(each.objective) for _, each in rows], np.int32),
            np.array([each.learning_rate for _, each in rows], np.float32),
            np.array([each.max_gradient_norm for _, each in rows], np.float32),
        )
        trace = simulate(params, runs, dataclasses.replace(shape, objectives=objectives))
        for j, i in enumerate(members):
            own = slice(j * len(seeds), (j + 1) * len(seeds))
            traces[i] = Trace({k: v[own] for k, v in trace.metrics.items()}, trace.log_success[own], trace.greedy[own])
    return [traces[i] for i in range(len(arms))]
