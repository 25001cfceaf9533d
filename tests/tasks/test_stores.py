"""The same rows and ids from every kind of store, and errors that say what was tried and what is accepted."""

import contextlib
import io
import json
import sys

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds

from experiments import array_records
from rlvr_jax.errors import UserError
from rlvr_jax.tasks import make_task
from rlvr_jax.tasks.array_records import write_array_records
from rlvr_jax.tasks.stores import open_tables


def gsm8k_rows(start, count):
    """Text of every kind that a store could change: line breaks, marks, other alphabets, surrounding blanks."""
    return [
        {"question": f"  \u00dcber {i}\u202f\u2212 1?\n", "answer": f"<<{i}-1={i - 1}>>\r\n\u2713\n#### {i - 1:,}"}
        for i in range(start, start + count)
    ]


MATH_ROWS = [
    {
        "problem": f"What is ${i}^2$?",
        "solution": rf"It is $\boxed{{{i * i}}}$.",
        "answer": str(i * i),
        "subject": "Algebra",
        "level": i % 5 + 1,
        "unique_id": f"test/algebra/{i}.json",
    }
    for i in range(13)
]


def write_jsonl(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def splits():
    # More than 10 and 100 rows: an order by text or by shard would show.
    return {"train": gsm8k_rows(0, 123), "test": gsm8k_rows(1000, 17)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory, splits):
    """One folder of each kind with the same rows."""
    root = tmp_path_factory.mktemp("stores")
    for split, rows in splits.items():
        write_jsonl(root / "jsonl" / f"{split}.jsonl", rows)
        (root / "parquet").mkdir(exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "parquet" / f"{split}.parquet")
    saved = datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in splits.items()})
    saved.save_to_disk(str(root / "saved"))
    with contextlib.redirect_stdout(io.StringIO()):
        records = write_array_records("gsm8k", root / "records", str(root / "jsonl"))
    return {name: str(root / name) for name in ("jsonl", "parquet", "saved")} | {"records": str(records)}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved", "records"])
def test_every_store_gives_the_same_rows_and_ids(stores, splits, kind):
    task = make_task("gsm8k", stores[kind])
    assert (task.size("train"), task.size("held_out")) == (123, 17)
    held_out = [task.row("held_out", i) for i in range(17)]
    train = [task.row("train", i, seed=5) for i in range(3 * 123)]
    for rows, written in ((held_out, splits["test"]), (train[:123], splits["train"])):
        for row in rows:
            assert row.question == written[row.id]["question"]
            assert row.answer == written[row.id]["answer"].rpartition("#### ")[2]
    assert [row.id for row in held_out] == list(range(17))
    reference = make_task("gsm8k", stores["jsonl"])
    assert train == [reference.row("train", i, seed=5) for i in range(3 * 123)]


def test_array_records_are_read_at_random_without_tensorflow(stores, splits, tmp_path):
    source = tfds.data_source(
        "gsm8k",
        split="train",
        data_dir=str(tmp_path),
        builder_kwargs={"data": stores["jsonl"]},
    )
    for i in (122, 0, 57):
        assert source[i]["question"].decode() == splits["train"][i]["question"]
    assert "tensorflow" not in sys.modules


def test_the_command_prints_the_folder_alone(call, stores, tmp_path):
    status, out, _ = call(array_records, "gsm8k", tmp_path, "--data", stores["saved"])
    assert (status, out) == (0, f"{tmp_path}/gsm8k/1.0.0\n")
    assert make_task("gsm8k", out.strip()).row("held_out", 16).answer == "1,015"
    assert call(array_records, "gsm9k", tmp_path)[0] == 2


def test_math500_keeps_all_fields_as_array_records(tmp_path):
    write_jsonl(tmp_path / "one.jsonl", MATH_ROWS)
    folder = write_array_records("math500", tmp_path / "records", str(tmp_path / "one.jsonl"))
    table = open_tables(str(folder))["test"]
    assert [table.read(i) for i in range(table.size)] == MATH_ROWS
    ours, theirs = (make_task("math500", str(data)) for data in (folder, tmp_path / "one.jsonl"))
    assert ours.size("train") == theirs.size("train") == 0
    assert [ours.row("held_out", i) for i in range(13)] == [theirs.row("held_out", i) for i in range(13)]


def test_a_catalogue_name_is_prepared_once_and_read(monkeypatch, stores, splits, tmp_path):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    parts = {"train": splits["train"], "test": splits["test"]}
    fetched = []

    def load_dataset(hub_id, configuration, split):
        fetched.append((hub_id, configuration, split))
        return parts[split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for _ in range(2):
        assert make_task("gsm8k", "tfds:gsm8k").row("held_out", 3).answer == "1,002"
    assert fetched == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]


def test_rows_without_named_splits_have_an_eighth_held_out_alike(tmp_path, splits):
    write_jsonl(tmp_path / "one.jsonl", splits["train"])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(splits["train"]), tmp_path / "one.parquet")
    datasets.Dataset.from_list(splits["train"]).save_to_disk(str(tmp_path / "saved"))
    found = []
    for name in ("one.jsonl", "one.parquet", "saved"):
        task = make_task("gsm8k", str(tmp_path / name))
        rows = {split: [task.row(split, i) for i in range(task.size(split))] for split in ("train", "held_out")}
        assert not {row.question for row in rows["train"]} & {row.question for row in rows["held_out"]}
        assert len(rows["train"]) + len(rows["held_out"]) == 123
        found.append(rows)
    assert found[0] == found[1] == found[2]


def test_hub_datasets_are_named_with_their_configuration(monkeypatch, splits):
    asked = []

    def load_dataset(hub_id, configuration, split):
        asked.append((hub_id, configuration, split))
        return datasets.DatasetDict(
            {
                name: datasets.Dataset.from_list(splits[part])
                for name, part in (("train", "train"), ("validation", "test"))
            }
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = make_task("rows:gsm8k", "hub:someone/sums:easy")
    assert (task.size("train"), task.size("held_out")) == (123, 17)
    assert task.row("held_out", 0).answer == "999"
    assert asked == [("someone/sums", "easy", None)]


def test_own_rows_have_own_fields_and_a_chosen_verifier(tmp_path):
    rows = [{"task": f"{i} / 2?", "right": i / 2, "problem": "not this"} for i in range(40)]
    write_jsonl(tmp_path / "mine.jsonl", rows)
    task = make_task("rows:math,question=task,answer=right", str(tmp_path / "mine.jsonl"))
    row = task.row("held_out", 0)
    assert row.answer == str(rows[int(row.question.split()[0])]["right"])
    assert task.worker_grader == "math"
    assert task.max_new_tokens == 1024
    strict = make_task("rows:gsm8k:strict,question=task,answer=right", str(tmp_path / "mine.jsonl"))
    assert not strict.verify(row, f"The answer is {row.answer}.").correct
    own = make_task("rows:rlvr_jax.tasks.gsm8k:grade,question=task,answer=right", str(tmp_path / "mine.jsonl"))
    assert own.verify(row, f"The answer is {row.answer}.").correct


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("rows:math", None, "task is 'rows:math' without data; accepted is --data with a .jsonl or .parquet"),
        ("rows:maths", "x", "verifier is 'maths', accepted are gsm8k, gsm8k:strict, math"),
        ("rows:math,gold=x", "x", "accepted are rows:VERIFIER and after it question=FIELD, answer=FIELD"),
        ("rows:math,question", "x", "'question' is not understood, accepted is NAME,key=value"),
        ("rows:no.such:thing", "x", "verifier is 'no.such:thing': No module named 'no'"),
    ],
)
def test_own_rows_say_what_is_accepted(task, data, message):
    with pytest.raises(UserError, match=message):
        make_task(task, data)


def test_stores_that_cannot_be_read_say_what_was_tried(tmp_path, monkeypatch):
    def fails(data, message):
        with pytest.raises(UserError, match=message) as caught:
            make_task("gsm8k", str(data)).size("train")
        assert "accepted" in str(caught.value)

    fails(tmp_path / "absent", r"absent': does not exist; accepted are a \.jsonl or \.parquet file")
    fails(tmp_path, "none of train.jsonl, train.parquet, test.jsonl, .* in it")
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "train.parquet").touch()
    fails(tmp_path, "the same split twice")
    (tmp_path / "bad.parquet").write_text("not Parquet")
    fails(tmp_path / "bad.parquet", r"bad\.parquet: not Parquet")
    (tmp_path / "features.json").write_text("{}")
    fails(tmp_path, "is no dataset of tensorflow-datasets in ArrayRecord form")
    (tmp_path / "state.json").write_text("{}")
    fails(tmp_path, "datasets cannot load it")
    fails("tfds:no_such_set", "tfds:no_such_set could not be prepared or read as ArrayRecord")

    def unreachable(hub_id, configuration, split):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    fails("hub:a/b", r"a/b could not be fetched from the hub \(no route\); accepted is also --data with a copy")


def test_writing_array_records_needs_all_splits_and_fields(tmp_path, splits):
    write_jsonl(tmp_path / "half" / "train.jsonl", splits["train"])
    with pytest.raises(UserError, match="no test rows; accepted is data with all"):
        write_array_records("gsm8k", tmp_path / "out", str(tmp_path / "half"))
    write_jsonl(tmp_path / "bare.jsonl", [{"problem": "1?", "answer": "1"}])
    with pytest.raises(UserError, match=r"bare\.jsonl, line 1: no field solution, subject, level, unique_id"):
        write_array_records("math500", tmp_path / "out", str(tmp_path / "bare.jsonl"))
    with pytest.raises(UserError, match="dataset is 'svamp', accepted are gsm8k, math500"):
        write_array_records("svamp", tmp_path / "out")


def test_numbers_are_text_and_other_values_are_refused(tmp_path):
    """A number is its shortest text; what is neither text nor number is refused."""
    write_jsonl(tmp_path / "test.jsonl", [{"question": "1?", "answer": answer} for answer in (7, 0.5, -3, True, None)])
    task = make_task("gsm8k", str(tmp_path))
    assert [task.row("held_out", i).answer for i in range(3)] == ["7", "0.5", "-3"]
    for i in (3, 4):
        with pytest.raises(UserError, match=f"line {i + 1}: accepted are objects with the strings question and answer"):
            task.row("held_out", i)
