"""Tasks with stored rows: fields of each source, splits, and what is said of data without them."""

import json
import sys
import types
from pathlib import Path

import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.tasks import make_task

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data folder beside the project is absent")


def write(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_math_takes_the_answer_or_the_last_box_of_the_solution(tmp_path):
    write(
        tmp_path / "train.jsonl",
        {"problem": "1 + 1?", "solution": r"First $\boxed{3}$, no: $\boxed{\frac{4}{2}}$."},
        {"problem": "2 + 2?", "solution": "irrelevant", "answer": "4"},
    )
    write(tmp_path / "test.jsonl", {"problem": "3 + 3?", "answer": "6"})
    task = make_task("math", str(tmp_path))
    assert (task.size("train"), task.size("held_out")) == (2, 1)
    assert {task.row("train", i).answer for i in range(2)} == {r"\frac{4}{2}", "4"}
    row = task.row("held_out", 0)
    assert (row.question, row.answer) == ("3 + 3?", "6")
    assert task.verify(row, r"\boxed{\frac{12}{2}}").correct
    prefix, rest = make_task("math", str(tmp_path), "plain").prompt(row, None)
    assert "\\boxed" in prefix
    assert rest == "Question: 3 + 3?\nAnswer:"


def test_math500_has_questions_to_evaluate_on_alone(tmp_path):
    write(tmp_path / "rows.jsonl", *({"problem": f"{i}?", "answer": str(i)} for i in range(20)))
    task = make_task("math500", str(tmp_path / "rows.jsonl"))
    assert (task.size("train"), task.size("held_out")) == (0, 20)
    assert [task.row("held_out", i).answer for i in range(20)] == [str(i) for i in range(20)]
    with pytest.raises(UserError, match="math500 has no train rows"):
        task.row("train", 0)


def test_svamp_has_the_hubs_fields_or_plain_ones(tmp_path):
    write(
        tmp_path / "test.jsonl",
        {"question_concat": "How many?", "Answer": "145.0"},
        {"question": "How much?", "answer": "6"},
    )
    task = make_task("svamp", str(tmp_path))
    assert [task.row("held_out", i).answer for i in range(2)] == ["145.0", "6"]
    assert task.verify(task.row("held_out", 0), "#### 145").correct
    assert task.size("train") == 0


@pytest.mark.parametrize(
    ("task", "fields"), [("math", "problem or question and answer or solution"), ("svamp", "question")]
)
def test_missing_fields_are_named(tmp_path, task, fields):
    write(tmp_path / "test.jsonl", {"problem": "1?", "question": "1?", "level": 3})
    with pytest.raises(UserError, match=f"line 1: accepted are objects with the strings {fields}"):
        make_task(task, str(tmp_path)).row("held_out", 0)


def test_hub_parts_are_joined_in_order(monkeypatch):
    asked = []

    def load_dataset(hub_id, configuration, split):
        asked.append((hub_id, configuration, split))
        row = {"problem": f"{configuration}?", "solution": rf"$\boxed{{{len(asked)}}}$"}
        return [row]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    task = make_task("math")
    assert task.size("train") == 7
    rows = sorted((task.row("train", i) for i in range(7)), key=lambda row: row.id)
    assert [row.answer for row in rows] == [str(i) for i in range(1, 8)]
    assert rows[0].question == "algebra?"
    assert {part[0] for part in asked} == {"EleutherAI/hendrycks_math"}

    def unreachable(hub_id, configuration, split):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=unreachable))
    with pytest.raises(UserError, match=r"HuggingFaceH4/MATH-500 could not be fetched from the hub \(no route\)"):
        make_task("math500").size("held_out")


@needs_data
def test_public_files_load_whole():
    assert make_task("math500", str(DATA / "math500")).size("held_out") == 500
    svamp = make_task("svamp", str(DATA / "svamp"))
    assert svamp.size("held_out") == 1000
    for i in range(1000):
        row = svamp.row("held_out", i)
        assert svamp.verify(row, f"#### {row.answer}").correct
