"""The configuration of a run: typed, frozen, checked once when built."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

from rlvr_jax.errors import UserError
from rlvr_jax.models import LoraSettings, Remat
from rlvr_jax.objectives import KL, OBJECTIVES, Objective, Overlong, losses, named_objective, using
from rlvr_jax.objectives.kl import Estimator
from rlvr_jax.sampling import Precision, checked_stop_strings
from rlvr_jax.sharding import MeshShape
from rlvr_jax.tasks import PromptFormat


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One run: a policy, a task, an objective, an optimiser and a schedule."""

    model: str = "embedded:smollm2-135m-instruct"
    """Hub id, local folder, .gguf file, or embedded:NAME."""
    task: str = "arithmetic"
    """arithmetic, gsm8k, gsm8k:strict, svamp, math, reasoning_gym:GENERATOR,parameter=value,..., or, for data of your
    own, rows:VERIFIER,question=FIELD,answer=FIELD (VERIFIER: gsm8k, gsm8k:strict, math, package.module:function)."""
    data: str | None = None
    """The task's rows: a .jsonl or .parquet file (an eighth is held out), a folder with train and test files, a folder
    of datasets' save_to_disk, a version folder of tensorflow-datasets, hub:OWNER/NAME[:CONFIGURATION], or tfds:NAME.
    Default: the task's public home."""
    prompt_format: PromptFormat = "chat"
    """chat (the model's chat template), chat_thinking, chat_few_shot, plain, few_shot, or a JSON object, or a .json
    file with one, of layout, thinking, shots, system and question. Arithmetic is always plain few-shot lines."""
    max_prompt_tokens: int | None = None
    """Longest prompt, without the prefix that all prompts share; default: the longest of the task's rows."""

    objective: str = "sign"
    """Its name; `python -m experiments.objectives` lists them."""
    surrogate: losses.Surrogate | None = None
    """Another surrogate loss than the objective's own."""
    clip_low: float | None = None
    """Another lower clip than the surrogate's own, as is the upper one."""
    clip_high: float | None = None
    aggregation: losses.Aggregation | None = None
    """Another aggregation than the objective's own."""
    kl_coefficient: float = 0.0
    """Weight of the KL to the initial policy."""
    kl_estimator: Estimator = "k3"
    kl_where: Literal["loss", "reward"] = "loss"
    """loss: with the gradient of the KL; reward: subtracted from the reward (use k1 or k3)."""
    overlong_cache: int = 0
    """DAPO's soft length penalty over the last so many of max_new_tokens; 0: none."""
    drop_truncated: bool = False
    """Leave completions that the length limit ended out of the loss."""

    steps: int = 40
    """Rollout steps; each samples, verifies and updates."""
    prompts_per_step: int = 8
    samples_per_prompt: int = 4
    max_new_tokens: int | None = None
    """Longest completion; default: what the task needs."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, in training and in evaluation, beside the model's and the task's own stop tokens.
    The token that completes one is trained on and verified like any other: the text keeps the string. In bash a line
    break is $'\\n'."""
    temperature: float = 1.0
    slots: int | None = None
    """Completions that are decoded at a time, on all devices: one that ends makes place for the next. Fewer take less
    memory for keys and values; the tokens are the same. Default: all."""
    rollouts_per_step: int = 1
    """Above 1: sample up to so many times prompts_per_step prompts until prompts_per_step of them have mixed groups
    (DAPO's dynamic sampling)."""
    updates_per_rollout: int = 1
    """Optimiser steps on each batch of rollouts; above 1, use the ppo_clip surrogate."""
    staleness: Literal[0, 1] = 0
    """1: completions are sampled from the policy before the last update, while those of the step before are verified.
    The step after a checkpoint, or after a shorter run's last, has staleness 0: a resumed run has no older policy.
    Needs importance_cap or a surrogate with a ratio."""
    rollout: Precision = Precision()
    """Of sampling, where it is not to be the model's; needs importance_cap. Evaluations have the model's."""
    importance_cap: float | None = None
    """Truncated importance sampling: each token's policy loss is multiplied by min(pi_trainer / pi_sampler,
    importance_cap), for a sampler that differs by staleness or in precision; the surrogate's ratio is then to the
    trainer's policy before its first update on the batch. 2 is usual; default: no correction."""
    micro_batches: int = 1
    """Pieces in which a batch goes through the model, for memory; the update is the same."""
    packing: int | None = None
    """Sizes that are compiled for the completions of a micro-batch, in equal steps up to padded; of these the smallest
    is run that holds all real tokens. 1: always padded. Default: 4, and 1 for completions under 32 tokens."""
    remat: Remat = "none"
    """What each layer keeps for its backward pass: all (none is recomputed), products with weights (dots), or its input
    alone (full)."""

    fused_attention: bool = True
    """On TPU and CUDA, in bfloat16, attention of long completions by a kernel that stores no scores; else by XLA."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and matrix products; weights, optimizer, norms and softmax are float32. On CPU that is faster."""

    lora_rank: int = 0
    """Rank of low-rank adapters (LoRA), which alone are trained and kept; 0: all weights are."""
    lora_alpha: float = 128.0
    """An adapter counts lora_alpha / lora_rank."""
    lora_targets: tuple[str, ...] = LoraSettings.targets
    """The weights that have adapters."""

    learning_rate: float = 1e-5
    warmup_steps: int = 5
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    max_gradient_norm: float = 1.0

    seed: int = 0
    """Decides the order of prompts and all sampling noise."""
    mesh: MeshShape = MeshShape()
    decode_mesh: tuple[int, int, int] | None = None
    """Sizes of data, fsdp and tensor, over the same devices, for sampling alone: parameters are moved there at every
    rollout. Default: those of mesh."""

    evaluate_every: int = 10
    """Steps between evaluations on held-out questions; 0: only before the first and after the last."""
    evaluation_questions: int = 256
    evaluation_samples: int = 4
    evaluation_temperature: float = 1.0
    evaluation_batch: int = 64
    """Questions that are sampled together."""

    checkpoint_every: int = 20
    """Steps between checkpoints; 0: none at all."""
    keep_checkpoints: int = 2
    """The newest that stay, beside the one with the best held-out accuracy of those saved right after an evaluation."""
    checkpoint_folder: str | None = None
    """Where checkpoints are kept, gs://BUCKET/FOLDER for example, which needs gcsfs; default: in the run's folder."""
    max_skipped_in_a_row: int = 10
    """An update whose loss or gradient is not finite is left out; so many steps with one in a row end the run."""
    wandb: str | None = None
    """Project of Weights & Biases that metrics go to as well; needs pip install wandb."""
    output: Path | None = None
    """Folder of the run; default: runs/TASK-OBJECTIVE-seedN."""

    def __post_init__(self) -> None:
        least = {
            "steps": 1,
            "prompts_per_step": 1,
            "samples_per_prompt": 1,
            "rollouts_per_step": 1,
            "updates_per_rollout": 1,
            "micro_batches": 1,
            "lora_rank": 0,
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "kl_coefficient": 0.0,
            "overlong_cache": 0,
            "evaluate_every": 0,
            "evaluation_questions": 1,
            "evaluation_samples": 1,
            "evaluation_temperature": 0.0,
            "evaluation_batch": 1,
            "checkpoint_every": 0,
            "keep_checkpoints": 1,
            "max_skipped_in_a_row": 1,
            "seed": 0,
        }
        for name, low in least.items():
            if getattr(self, name) < low:
                raise UserError(f"{name} is {getattr(self, name)}, accepted is {low} or more")
        for name in ("learning_rate", "temperature", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}, accepted is a number above 0")
        if self.importance_cap is not None and not self.importance_cap > 0:
            raise UserError(f"importance_cap is {self.importance_cap}, accepted is a number above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, accepted is a number in [0, 1)")
        for name in ("max_new_tokens", "max_prompt_tokens", "slots", "packing"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, accepted is 1 or more")
        try:
            LoraSettings(self.lora_rank or 1, self.lora_alpha, self.lora_targets)
        except UserError as error:
            raise UserError(f"lora_{error}") from None
        if "gs:/" in str(self.output):
            raise UserError(
                f"output is {str(self.output)!r}: accepted is a local folder; checkpoint_folder may be in a bucket"
            )
        if self.seed >= 2**32:
            raise UserError(f"seed is {self.seed}, accepted is less than 2**32")
        checked_stop_strings(self.stop)
        try:
            self.resolved_objective.check(self.samples_per_prompt)
        except UserError as error:
            known = self.objective in OBJECTIVES
            raise UserError(f"objective is {self.objective!r}: {error}" if known else str(error)) from None
        self._check_staleness()
        if not self.rollout.exact and self.resolved_objective.loss.importance_cap is None:
            raise UserError(
                f"rollout is {self.rollout}: importance_cap must be given with it, 2.0 for example, to correct updates"
            )

    def _check_staleness(self) -> None:
        if self.staleness not in (0, 1):
            raise UserError(f"staleness is {self.staleness}, accepted are 0, 1")
        if self.staleness == 0:
            return
        if self.rollouts_per_step > 1:
            raise UserError(f"rollouts_per_step is {self.rollouts_per_step}, accepted with staleness 1 is 1")
        loss = self.resolved_objective.loss
        if loss.importance_cap is None and not loss.has_ratio:
            raise UserError(
                f"staleness is 1, but the surrogate {loss.name} has no ratio to the policy that sampled: accepted are "
                "importance_cap with it, 2.0 for example, or a surrogate that has one, ppo_clip for example"
            )

    @property
    def resolved_objective(self) -> Objective:
        """The named objective with what this run changes in it. Raises UserError for what does not fit."""
        objective = named_objective(self.objective)
        surrogate = losses.SURROGATES[self.surrogate] if self.surrogate else objective.loss.surrogate
        clips: dict[str, Any] = {name: getattr(self, name) for name in ("clip_low", "clip_high")}
        surrogate = using(surrogate, **{name: value for name, value in clips.items() if value is not None})
        loss = dataclasses.replace(
            objective.loss,
            surrogate=surrogate,
            aggregation=self.aggregation or objective.loss.aggregation,
            kl=KL(self.kl_coefficient, self.kl_estimator, self.kl_where),
            importance_cap=self.importance_cap or objective.loss.importance_cap,
        )
        overlong = objective.overlong
        if self.overlong_cache:
            if self.max_new_tokens is None:
                raise UserError(f"overlong_cache is {self.overlong_cache}: max_new_tokens must be given with it")
            overlong = Overlong(self.max_new_tokens, self.overlong_cache)
        drop_truncated = self.drop_truncated or objective.drop_truncated
        return dataclasses.replace(objective, loss=loss, overlong=overlong, drop_truncated=drop_truncated)

    @property
    def lora(self) -> LoraSettings | None:
        """The adapters that are trained, None when all weights are."""
        return LoraSettings(self.lora_rank, self.lora_alpha, self.lora_targets) if self.lora_rank else None

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        task = re.sub(r"[^\w.=]+", "-", self.task)
        return self.output or Path("runs") / f"{task}-{self.objective}-seed{self.seed}"
