"""An update in torch, as TRL does it: every completion beside its own copy of its prompt, padded to the longest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks.work import Work
from rlvr_jax.training.optimizer import OptimizerSettings


def update(
    folder: Path, work: Work, optimizer: OptimizerSettings, rows: int, turn: Callable[[], bool]
) -> dict[str, Any]:
    """`rows` completions at a time; the loss is that of the Sign objective, the mean of their token means."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    step = torch.optim.AdamW(
        model.parameters(),
        lr=optimizer.learning_rate,
        betas=(optimizer.beta1, optimizer.beta2),
        weight_decay=optimizer.weight_decay,
        fused=True,
    )
    prompts, prompt_mask = work.left_padded()
    alone = work.each_alone()
    mask = alone.completion_mask[:, 0]
    signs = (2 * alone.rewards - 1) / (alone.lengths * len(alone.lengths))
    tokens = torch.tensor(np.concatenate([prompts, alone.completions[:, 0]], 1)).long()
    seen = torch.tensor(np.concatenate([prompt_mask, mask], 1)).long()
    weights = torch.tensor(np.where(mask, signs, 0.0), dtype=torch.float32)
    norms = []
    while turn():
        for piece, piece_seen, piece_weights in zip(
            tokens.split(rows), seen.split(rows), weights.split(rows), strict=True
        ):
            width = piece_weights.shape[1]
            # One more: the token before the first of the completion predicts it.
            logits = model(piece, attention_mask=piece_seen, use_cache=False, logits_to_keep=width + 1).logits[:, :-1]
            surprise = cross_entropy(logits.flatten(0, 1), piece[:, -width:].flatten(), reduction="none")
            (surprise.view_as(piece_weights) * piece_weights).sum().backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.max_gradient_norm)))
        step.step()
        step.zero_grad()
    return {"gradient_norm": norms[0]}
