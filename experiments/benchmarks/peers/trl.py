"""TRL's GRPOTrainer at the steps of a preset."""

import tempfile
from collections.abc import Callable
from typing import Any

from experiments.benchmarks.work import questions
from rlvr_jax.errors import UserError
from rlvr_jax.training import TrainConfig


def step(config: TrainConfig, steps: int, rows: int, to_the_limit: bool, turn: Callable[[], bool]) -> None:
    """Full fine-tune in float32 with fused AdamW, without KL, gradient checkpointing, logs and checkpoints."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    asked = questions(config, steps)
    if asked.tokenizer(text=list(asked.texts))["input_ids"] != [list(tokens) for tokens in asked.tokens]:
        raise UserError(f"task is {config.task!r}: TRL reads its prompts as other tokens than ours")
    model = AutoModelForCausalLM.from_pretrained(asked.folder, dtype=torch.float32, attn_implementation="sdpa")
    model.generation_config.eos_token_id = asked.stop_tokens

    def reward(completion_ids: list[list[int]], place: list[int], **_: Any) -> list[float]:
        texts = [asked.tokenizer.decode(ids, skip_special_tokens=True) for ids in completion_ids]
        verdicts = asked.verify([asked.rows[i] for i in place], texts)
        return [float(verdict.correct) for verdict in verdicts]

    class TakesTurns(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            turn()

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            turn()

    completions = config.prompts_per_step * config.samples_per_prompt
    rows = min(rows, completions)
    if completions % rows:
        raise UserError(f"peer_rows is {rows}, accepted is a divisor of the completions of a step ({completions})")
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            optim="adamw_torch_fused",
            learning_rate=config.learning_rate,
            lr_scheduler_type="constant",
            adam_beta1=config.beta1,
            adam_beta2=config.beta2,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_gradient_norm,
            max_steps=steps,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=completions // rows,
            num_generations=config.samples_per_prompt,
            max_completion_length=asked.max_new_tokens,
            generation_kwargs={"min_new_tokens": asked.max_new_tokens} if to_the_limit else None,
            temperature=config.temperature,
            num_iterations=1,
            beta=0.0,
            shuffle_dataset=False,
            dataloader_pin_memory=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": list(asked.texts), "place": list(range(len(asked.rows)))}),
            processing_class=asked.tokenizer,
            callbacks=[TakesTurns()],
        )
        trainer.train()
