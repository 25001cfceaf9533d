"""The starvation command end to end: table, JSON, figure, and one line for each mistake."""

import csv
import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from experiments import starvation
from rlvr_jax.starvation import beta_binomial_degeneracy, degeneracy_at


@pytest.fixture
def write_log(tmp_path):
    def write(n, c, name="rewards.jsonl"):
        counts = enumerate(zip(n, c, strict=True))
        rows = [(f"q{i}", int(j < right)) for i, (size, right) in counts for j in range(size)]
        path = tmp_path / name
        if path.suffix == ".csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([("prompt_id", "correct"), *rows])
        else:
            path.write_text("".join(json.dumps({"prompt_id": q, "reward": r}) + "\n" for q, r in rows))
        return path

    return write


def test_table_json_and_figure_agree_with_the_library(call, write_log, tmp_path):
    generator = np.random.default_rng(0)
    n = np.array([8] * 400 + [3] * 5)
    c = generator.binomial(n, generator.beta(0.205, 0.615, n.size))
    log = write_log(n, c)
    code, out, err = call(starvation, log, "--json")
    assert (code, err) == (0, "")
    summary = json.loads(out.splitlines()[-1])
    assert (summary["prompts"], summary["prompts_left_out"], summary["samples"]) == (400, 5, 3200)
    assert summary["degeneracy"]["mean"] == pytest.approx(float(degeneracy_at(8, c[:400], 4).mean()), abs=1e-6)
    law = summary["beta_binomial"]
    assert law["degeneracy"] == pytest.approx(float(beta_binomial_degeneracy(law["a"], law["b"], 4)), abs=1e-5)
    assert abs(law["degeneracy"] - 0.6926) < 4 * law["degeneracy_error"]
    assert summary["degeneracy"]["low"] < 0.6926 < summary["degeneracy"]["high"]
    assert summary["jensen_gap"] == pytest.approx(summary["degeneracy"]["mean"] - summary["degeneracy_predicted"])
    for bound in ("mean", "low", "high"):
        assert summary["filtering_cost"][bound] == pytest.approx(1 / (1 - summary["degeneracy"][bound]), rel=1e-5)
    both = summary["all_wrong"]["mean"] + summary["all_right"]["mean"]
    assert both == pytest.approx(summary["degeneracy"]["mean"])
    assert summary["figure"] == str(tmp_path / "rewards_starvation.png")
    assert (tmp_path / "rewards_starvation.png").read_bytes().startswith(b"\x89PNG")

    code, out, _ = call(starvation, write_log(n, c, "rewards.csv"), "--group-size", "8", "--output", tmp_path / "f.svg")
    assert code == 0
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    assert "5 prompts left out: fewer than 8 samples" in " ".join(out.split())
    assert f"Figure: {tmp_path / 'f.svg'}" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "f.svg", "rewards.csv", "rewards.jsonl", "rewards_starvation.png"
    ]  # fmt: skip


def table_text(summary):
    console = Console(width=80, file=io.StringIO())
    console.print(starvation.summary_table(summary, "log"))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("n", "c"),
    [
        ([4] * 5, [0] * 5),
        ([4] * 5, [4] * 5),
        ([4] * 4, [4, 0, 0, 4]),
        ([10] * 8, [4, 4, 4, 4, 4, 4, 4, 5]),
        ([4], [1]),
        ([4, 900], [0, 1]),
    ],
    ids=["wrong", "right", "all-or-none", "alike", "one prompt", "unequal"],
)
def test_edges_give_strict_json_and_a_figure(call, write_log, n, c):
    code, out, _ = call(starvation, write_log(n, c), "--json")
    assert code == 0

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    summary = json.loads(out.splitlines()[-1], parse_constant=refuse)
    assert 0 <= summary["degeneracy"]["low"] <= summary["degeneracy"]["high"] <= 1
    assert not math.isnan(summary["beta_binomial"]["degeneracy"])
    assert "nan" not in table_text(summary)


def test_mistakes_end_in_one_line(call, write_log, tmp_path):
    log = write_log([4, 4], [1, 2])
    for arguments, said in [
        ((tmp_path / "none.csv",), "cannot be read"),
        ((log, "--group-size", "1"), "group_size is 1, accepted are whole numbers from 2"),
        ((log, "--group-size", "5"), "group_size is 5, accepted are 2 to 4"),
        ((log, "--output", tmp_path / "a.jpg"), "accepted are files that end in .png, .pdf, .svg"),
        ((log, "--output", tmp_path / "no" / "a.png"), "accepted is a file in a folder that exists"),
    ]:
        code, out, err = call(starvation, *arguments)
        assert (code, out) == (2, ""), err
        assert said in err
        assert err.count("\n") == 1
