"""The notebooks, executed as they are but for tiny settings, and each equal to the script that it is made of.

After a change of a script: `jupytext --to ipynb colabs/*.py`.
"""

import base64
import contextlib
import io
import queue
import re
import time
from pathlib import Path

import jupytext
import matplotlib.image
import nbclient
import numpy as np
import pytest

COLABS = Path(__file__).parents[2] / "colabs"
SCRIPTS = sorted(COLABS.glob("*.py"))

_LAB = "lab = Lab(samples=2, prompts=4, steps=2, evaluate_every=1, success_rate=0.005)\nseeds = range(2)"
_RUN = """config = dataclasses.replace(
    PRESETS["smollm2_arithmetic"], model={model!r}, steps=2, evaluate_every=1, evaluation_questions=8,
    evaluation_batch=8, checkpoint_every=1, packing=None, output=Path("run"),
)"""
SETTINGS = {"02_sign_vs_group_mean": _LAB, "03_gsm8k_tpu": _RUN, "04_your_objective": _LAB}
"""In place of the cell of that tag."""
FIGURES = {"01_starvation": 2, "02_sign_vs_group_mean": 1, "03_gsm8k_tpu": 1, "04_your_objective": 2}


class AskingClient(nbclient.NotebookClient):
    """Asks for a reply again every second: on a busy machine it can miss that one came until its timeout is over."""

    async def async_start_new_kernel_client(self):
        client = await super().async_start_new_kernel_client()
        get = client.shell_channel.get_msg

        async def get_message(timeout):
            end = time.monotonic() + timeout
            while time.monotonic() < end:
                with contextlib.suppress(queue.Empty):
                    return await get(timeout=1)
            raise queue.Empty

        client.shell_channel.get_msg = get_message
        return client


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_notebook_is_the_script(script):
    notebook, source = jupytext.read(script.with_suffix(".ipynb")), jupytext.read(script)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in source.cells
    ]
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept in the repository"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_executes_and_draws(script, tiny_model, tmp_path):
    notebook = jupytext.read(script)
    if script.stem in SETTINGS:
        (cell,) = (cell for cell in notebook.cells if "settings" in cell.metadata.get("tags", ()))
        cell.source = SETTINGS[script.stem].format(model=str(tiny_model.folder))
    AskingClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    figures = re.findall(r"'image/png': '([^']+)'", str(notebook))
    assert len(figures) == FIGURES[script.stem]
    for figure in figures:
        pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(figure.replace("\\n", ""))))
        colours = np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)
        assert len(colours) > 20, "an empty figure has the colours of its frame alone"
