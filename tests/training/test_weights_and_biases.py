"""What is told to Weights & Biases, whose library stands in for itself: it is not installed for tests."""

import sys
import types

import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.training import TrainConfig
from rlvr_jax.training.run_folder import RunFolder
from rlvr_jax.training.weights_and_biases import WeightsAndBiases


class Refused(Exception):
    pass


class Library(types.ModuleType):
    """Keeps what it is told."""

    Error = Refused

    def __init__(self, refuses=False):
        super().__init__("wandb")
        self.refuses, self.begun, self.logged, self.axes, self.ended = refuses, [], [], [], 0

    def init(self, **how):
        if self.refuses:
            raise Refused("no API key\nand more")
        self.begun.append(how)
        return self

    def define_metric(self, name, step_metric):
        self.axes.append((name, step_metric))

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.ended += 1


@pytest.fixture
def library(monkeypatch):
    library = Library()
    monkeypatch.setitem(sys.modules, "wandb", library)
    return library


def begin(folder, **how):
    return WeightsAndBiases("project", folder, "a run", {"steps": 3}, **({"resumed": False} | how))


def test_metrics_go_to_the_named_project_by_step(library, tmp_path):
    writer = begin(tmp_path / "wandb")
    writer.write(1, {"reward": 0.5})
    writer.write(2, {"reward": 0.25})
    writer.close()
    (how,) = library.begun
    assert (how["project"], how["name"], how["config"]) == ("project", "a run", {"steps": 3})
    assert library.logged == [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.25}]
    assert library.axes == [("*", "step")]
    assert library.ended == 1


def test_a_resumed_run_is_the_same_there_and_a_new_one_is_not(library, tmp_path):
    for resumed in (False, True, False):
        begin(tmp_path, resumed=resumed)
    first, again, other = (how["id"] for how in library.begun)
    assert first == again != other
    assert {how["resume"] for how in library.begun} == {"allow"}
    # One that had no project before its resumption.
    begin(tmp_path / "later", resumed=True)
    assert library.begun[-1]["id"] not in (first, other)


def test_what_it_lacks_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", Library(refuses=True))
    with pytest.raises(UserError, match=r"wandb is 'project', which refuses \(no API key\): accepted are wandb login"):
        begin(tmp_path)


def test_a_run_without_the_library_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="wandb is 'project', which needs a library: accepted is pip install wandb"):
        RunFolder(TrainConfig(wandb="project", output=tmp_path / "run"), resume=False)
    assert not (tmp_path / "run").exists()
