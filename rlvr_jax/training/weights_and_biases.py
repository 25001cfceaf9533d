"""Scalars for Weights & Biases, where a run is told of a project; its own process sends them."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_jax.errors import UserError


def require_library(project: str) -> None:
    """Raises UserError where wandb is not installed: to be known before a run has a folder."""
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise UserError(f"wandb is {project!r}, which needs a library: accepted is pip install wandb") from None


class WeightsAndBiases:
    """One run of a project, the same again when it is resumed. Its files and its id lie in `folder`.

    Raises UserError where nobody is logged in.
    """

    def __init__(self, project: str, folder: Path, name: str, config: Mapping[str, Any], *, resumed: bool):
        import wandb

        known = folder / "id"
        if not (resumed and known.is_file()):
            folder.mkdir(parents=True, exist_ok=True)
            known.write_text(uuid.uuid4().hex[:12])
        try:
            self._run = wandb.init(
                project=project, dir=folder, id=known.read_text(), name=name, config=dict(config), resume="allow"
            )
        except wandb.Error as error:
            raise UserError(
                f"wandb is {project!r}, which refuses ({str(error).splitlines()[0]}): accepted are wandb login and "
                "WANDB_MODE=offline"
            ) from error
        # Its own count of steps cannot go back, as a run does that goes on from a checkpoint.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()
