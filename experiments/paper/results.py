"""The folder that a command of the paper keeps its figures in, known to be usable before the work begins."""

import json
from pathlib import Path
from typing import Any

from experiments.command import as_dict
from rlvr_jax.errors import UserError
from rlvr_jax.training.run_folder import write_json

RESULTS, SETTINGS = "results.json", "settings.json"
_SHAPE_NO_RESULT = {"output", "json", "resume"}


def open_results(folder: Path, arguments: Any) -> None:
    """Makes the folder and keeps the command's settings in it; the same settings may be run again.

    Raises UserError where it cannot be written to, and where it holds results of other settings.
    """
    chosen = {name: value for name, value in as_dict(arguments).items() if name not in _SHAPE_NO_RESULT}
    settings, file = json.loads(json.dumps(chosen, default=str)), folder / SETTINGS
    try:
        earlier = json.loads(file.read_text()) if file.is_file() else {}
        if (folder / RESULTS).is_file() and earlier != settings:
            differing = next((name for name in settings if earlier.get(name) != settings[name]), SETTINGS)
            raise UserError(
                f"output is {str(folder)!r}: the folder holds results of another {differing} "
                f"({earlier.get(differing)!r}); accepted is another --output"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, settings)
    except OSError as error:
        raise UserError(
            f"output is {str(folder)!r}: {error.strerror or error}; accepted is a folder that can be written to"
        ) from error
