"""The grade command: counts, errors against known verdicts, own field names, and user errors."""

import json

import pytest

from experiments import grade

LINES = [
    {"id": "a", "task": "gsm8k", "gold": "18", "response": "#### 18", "correct": True},
    {"id": "b", "task": "gsm8k", "gold": "18", "response": "#### 20", "correct": False},
    {"id": "c", "task": "svamp", "gold": "7", "response": "#### 7", "correct": False},
    {"id": "d", "task": "gsm8k", "gold": 7, "response": "no idea"},
    {"id": "e", "task": "math", "gold": "\\frac{1}{2}", "response": "\\boxed{0.5}", "correct": True},
    {"id": "f", "gold": "3", "response": "\\boxed{4}", "correct": True},
]


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "responses.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return file


def test_counts_errors_and_writes_verdicts(call, file, tmp_path):
    status, out, _ = call(grade, file, "--json", "--workers", 1, "--output", tmp_path / "verdicts.jsonl")
    assert status == 0
    summary = json.loads(out.splitlines()[-1])
    expected = {
        "gsm8k": {"responses": 4, "correct": 2, "wrong": 1, "unparsable": 1, "timed-out": 0, "known": 3},
        "math": {"responses": 2, "correct": 1, "wrong": 1, "unparsable": 0, "timed-out": 0, "known": 2},
    }
    for task, counts in expected.items():
        assert {name: summary["tasks"][task][name] for name in counts} == counts
    errors = {name: (x["false_positives"], x["false_negatives"]) for name, x in summary["tasks"].items()}
    assert errors == {"gsm8k": (1, 0), "math": (0, 1)}
    assert summary["tasks"]["math"]["false_negative_rate"] == 0.5
    assert [(x["line"], x["id"], x["kind"]) for x in summary["disagreements"]] == [
        (3, "c", "false positive"),
        (6, "f", "false negative"),
    ]
    written = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in written] == ["correct", "wrong", "correct", "unparsable", "correct", "wrong"]
    assert written[0] == {**LINES[0], "outcome": "correct", "reason": "right"}


def test_table_with_other_field_names(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "mine.jsonl"
    file.write_text('{"answer": "5", "completion": "#### 5"}\n{"answer": "5", "completion": "#### 6"}\n')
    settings = ("--task", "gsm8k", "--gold-field", "answer", "--response-field", "completion")
    status, out, _ = call(grade, file, *settings)
    assert status == 0
    row = next(line for line in out.splitlines() if "gsm8k" in line)
    assert row.replace("\u2502", " ").split() == ["gsm8k", "2", "1", "1", "0", "0"]
    assert "false" not in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("[1]\n", "line 1: accepted are JSON objects"),
        ("{\n", "line 1: not JSON"),
        ("\udcff\n", "line 1: not UTF-8 text"),
        ('{"gold": "1"}\n', "line 1: response is None, accepted is a string (other fields: gold)"),
        ('{"gold": "1", "response": "1", "task": "chess"}\n', "task is 'chess', accepted are gsm8k"),
        ('{"gold": "1", "response": "1", "correct": "yes"}\n', "correct is 'yes', accepted are true and false"),
        ('{"gold": "1", "response": "1", "task": "nowhere:grade"}\n', "verifier is 'nowhere:grade'"),
    ],
)
def test_what_cannot_be_graded_is_named(call, tmp_path, content, message):
    (tmp_path / "mine.jsonl").write_text(content, encoding="utf-8", errors="surrogateescape")
    status, _, err = call(grade, tmp_path / "mine.jsonl")
    assert status == 2
    assert message in err


def test_missing_file(call, tmp_path):
    status, _, err = call(grade, tmp_path / "none.jsonl")
    assert (status, "accepted is a JSONL file" in err) == (2, True)
