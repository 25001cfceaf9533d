"""The paper's commands: exit status, kept figures, the same numbers twice."""

import dataclasses
import json

import numpy as np
import pytest

from experiments import compare as compare_command
from experiments import train
from experiments.lab.arms import arm
from experiments.paper import degeneracy, math500_transfer, pass_at_k, phase_diagram, sign_vs_group_mean
from experiments.paper.results import open_results
from experiments.presets import PRESETS
from rlvr_jax.errors import UserError

SMALL = ("--seeds", 2, "--steps", 2, "--success-rate", 0.02, "--prompts", 2)


@pytest.fixture
def two_arms(monkeypatch):
    """As many as one compilation gives."""
    monkeypatch.setattr(sign_vs_group_mean, "controls", lambda lab: [arm(lab, "sign"), arm(lab, "group_mean")])


@pytest.mark.slow
def test_sign_vs_group_mean_keeps_the_same_numbers_twice(call, two_arms, tmp_path):
    kept = []
    for name in ("one", "two"):
        code, out, _ = call(sign_vs_group_mean, *SMALL, "--output", tmp_path / name, "--json")
        assert code == 0
        assert {file.name for file in (tmp_path / name).iterdir()} == {
            "settings.json",
            "results.json",
            "curves.png",
            "curves.svg",
        }
        kept.append([(tmp_path / name / file).read_bytes() for file in ("results.json", "curves.svg")])
        assert json.loads(out.splitlines()[-1]) == json.loads(kept[-1][0])
    assert kept[0] == kept[1]
    summary = json.loads(kept[0][0])
    assert summary["base"]["accuracy"] >= 0.02
    assert summary["base"]["degeneracy"] >= summary["base"]["degeneracy_predicted"]
    assert list(summary["arms"]) == ["sign", "group_mean"]
    first, second = (summary["arms"][name]["accuracy_by_seed"] for name in ("sign", "group_mean"))
    (row,) = summary["differences"]
    assert row["difference"]["mean"] == pytest.approx(sum(first) / 2 - sum(second) / 2)
    # Two pairs have four choices of signs.
    assert row["permutation"]["least_p"] == 0.5


@dataclasses.dataclass(frozen=True)
class Settings:
    seeds: int = 2
    json: bool = False


def test_results_of_other_settings_are_not_written_over(tmp_path):
    folder = tmp_path / "a" / "b"
    open_results(folder, Settings())
    # Without results yet, and with results of the same settings.
    open_results(folder, Settings(seeds=3))
    (folder / "results.json").write_text("{}")
    open_results(folder, Settings(seeds=3, json=True))
    with pytest.raises(UserError, match=r"b': the folder holds results of another seeds \(3\); accepted is another"):
        open_results(folder, Settings())
    assert json.loads((folder / "settings.json").read_text()) == {"seeds": 3}


def test_a_folder_that_cannot_be_written_to_is_said_before_the_work(call, tmp_path):
    (tmp_path / "file").write_text("")
    for command in (sign_vs_group_mean, phase_diagram, degeneracy, pass_at_k):
        code, _, err = call(command, "--output", tmp_path / "file" / "x")
        assert (code, "file/x': Not a directory; accepted is a folder" in err) == (2, True), err


def test_usage_errors_of_the_main_command(call):
    assert call(sign_vs_group_mean, "--seeds", 0)[0] == 2
    code, _, err = call(sign_vs_group_mean, "--preset", "smollm2_arithmetic", "--optimizer", "sgd")
    assert (code, "optimizer is 'sgd': only the lab takes it" in err) == (2, True)
    code, _, err = call(sign_vs_group_mean, "--preset", "nothing")
    assert (code, "preset is 'nothing', accepted are lab, smollm2_arithmetic" in err) == (2, True)
    code, _, err = call(sign_vs_group_mean, "--max-new-tokens", 8)
    assert (code, "max_new_tokens is 8: the lab's" in err) == (2, True)


def test_the_papers_own_comparison_is_its_preset_under_three_objectives(call, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(sign_vs_group_mean, "compare", asked.append)
    flags = ("--preset", "qwen3.5_9b_gsm8k", "--seeds", 7, "--max-new-tokens", 512, "--output", tmp_path)
    assert call(sign_vs_group_mean, *flags)[0] == 0
    (arguments,) = asked
    assert arguments.objectives == ("sign", "group_mean", "group_mean_std")
    assert arguments.seeds == (42, 43, 44, 45, 46, 47, 48)
    preset = PRESETS["qwen3.5_9b_gsm8k"]
    assert arguments.config == dataclasses.replace(
        preset, max_new_tokens=512, seed=0, checkpoint_every=0, output=tmp_path
    )


def test_a_presets_seed_is_the_first_to_compare_and_not_one_for_all():
    arguments = compare_command._preset(PRESETS["qwen3.5_9b_gsm8k"])
    assert arguments.seeds == (42,)
    assert arguments.config.seed == 0


@pytest.mark.slow
def test_phase_diagram_has_every_cell_once(call, tmp_path):
    sweep = ("--success-rates", 0.02, "--heterogeneities", 0.0, "--group-sizes", 4, "--learning-rates", 1e-3)
    flags = (*sweep, "--sgd-learning-rates", "--seeds", 2, "--steps", 2, "--completions", 8, "--output", tmp_path)
    code, out, _ = call(phase_diagram, *flags, "--json")
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    (row,) = summary["cells"]
    assert row["difference"]["mean"] == pytest.approx(
        sum(row["accuracy"]["sign"]) / 2 - sum(row["accuracy"]["group_mean"]) / 2
    )
    # Rare success: the theory is for the group mean.
    assert row["signal_to_noise_ratio"] < 1
    assert summary["bases"][0]["degeneracy_at_4"] >= summary["bases"][0]["bernoulli_at_4"]
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".png", ".svg"}
    assert call(phase_diagram, "--seeds", 1)[0] == 2


def test_cells_of_the_default_sweep():
    swept = phase_diagram.cells(phase_diagram.PhaseDiagram())
    assert len(swept) == len(set(swept)) == (4 + 2 + 3) * 5 * 2


@pytest.mark.slow
def test_degeneracy_of_the_lab_and_of_run_folders(call, tmp_path):
    flags = ("--seeds", 2, "--steps", 4, "--stretches", 2, "--success-rate", 0.02, "--output", tmp_path / "lab")
    code, out, _ = call(degeneracy, *flags, "--json")
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    assert [row["steps"] for row in summary["arms"]["sign"]] == [[1, 2], [3, 4]]
    # By tenths of difficulty, before: with success this rare the hardest questions are nearly always all wrong.
    tenths = summary["by_difficulty"]["sign"]
    assert tenths[0][0] > tenths[-1][0]
    assert tenths[0][0] > 0.95

    def folder(name, observed):
        lines = [{"degeneracy": value, "degeneracy_predicted": 0.4} for value in observed]
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (tmp_path / name / "timings.jsonl").write_text("")
        return tmp_path / name

    above, below, lower = (folder(*run) for run in (("a", (0.5, 0.7)), ("b", (0.3, 0.1)), ("c", (0.3, 0.11))))

    def kept(name):
        return "--stretches", 1, "--output", tmp_path / name, "--json"

    code, out, _ = call(degeneracy, "--runs", above, below, *kept("first"))
    (row,) = json.loads(out.splitlines()[-1])["arms"]["runs"]
    assert (code, row["observed"], row["gap"]["mean"]) == (0, pytest.approx(0.4), pytest.approx(0.0))
    assert call(degeneracy, "--runs", below, lower, *kept("second"))[0] == 1
    code, _, err = call(degeneracy, "--runs", below, lower, *kept("first"))
    assert (code, "holds results of another runs" in err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--runs", "nowhere"), "run 'nowhere' has no finished step"),
        (("--seeds", 0), "seeds is 0"),
    ],
)
def test_degeneracy_of_nothing_is_refused(call, tmp_path, flags, message):
    code, _, err = call(degeneracy, *flags, "--output", tmp_path / "kept")
    assert (code, message in err) == (2, True)


def test_what_a_sample_is_worth_in_samples_of_the_base():
    base = np.array([0.2, 0.2])
    assert pass_at_k.worth(base, 1 - 0.8**3) == pytest.approx(3, rel=1e-6)
    assert pass_at_k.worth(np.array([0.0, 0.2]), 0.6) == float("inf")
    np.testing.assert_allclose(pass_at_k.curve(np.array([0.2, 0.0]))[:3], [0.1, (1 - 0.64) / 2, (1 - 0.8**4) / 2])


@pytest.mark.slow
def test_math500_transfer_is_paired_with_the_untrained_model(call, tiny_model, tmp_path):
    rows = [{"problem": f"What is {i} + 1?", "answer": str(i + 1), "unique_id": str(i)} for i in range(8)]
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = ("--steps", 1, "--evaluate-every", 0, "--evaluation-questions", 8, "--evaluation-batch", 8)
    run = tmp_path / "run"
    assert call(train, "smollm2_arithmetic", "--model", tiny_model.folder, *small, "--output", run)[0] == 0
    flags = ("--data", data, "--prompt-format", "plain", "--max-new-tokens", 4, "--batch", 8)
    flags = (*flags, "--output", tmp_path / "transfer")
    code, out, err = call(math500_transfer, run, *flags, "--json")
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary == json.loads((tmp_path / "transfer" / "results.json").read_text())
    untrained, trained = summary["policies"].values()
    gain = trained["accuracy"]["mean"] - untrained["accuracy"]["mean"]
    assert trained["against"]["accuracy"]["difference"] == pytest.approx(gain)
    assert summary["questions"] == 8
    assert call(math500_transfer, run, *flags)[0] == 0
