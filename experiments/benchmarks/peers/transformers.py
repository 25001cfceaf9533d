"""transformers' generate."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.benchmarks.work import Work


def sample(folder: Path, work: Work, turn: Callable[[], bool]) -> None:
    """All completions at once, each row running until the longest has ended."""
    import torch
    from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens, mask = (torch.tensor(x).long() for x in work.left_padded())
    ends = torch.tensor(work.lengths.ravel()) + tokens.shape[1]

    class AtItsLength(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
            return input_ids.shape[1] >= ends

    while turn():
        with torch.no_grad():
            found = model.generate(
                input_ids=tokens,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=work.completions.shape[2],
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([AtItsLength()]),
            )
        assert found.shape[1] == tokens.shape[1] + np.max(work.lengths)
