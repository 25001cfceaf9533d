"""Whole evaluations of the tiny model: the same on every mesh and in any company, killed and resumed, refused."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import pyarrow
import pyarrow.parquet
import pytest

from experiments import evaluate as evaluate_command
from rlvr_jax.evaluation import EvaluationFolder, Roller, evaluate
from rlvr_jax.models import load_params
from rlvr_jax.sharding import MeshShape, make_mesh
from rlvr_jax.tasks import PromptEncoder, make_task


def rows_in(folder):
    files = (folder / "completions").glob("*.parquet")
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    return sorted(rows, key=lambda row: (row["question_id"], row["sample"]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Twenty-one questions, which make two or three lengths of prompts."""
    folder = tmp_path_factory.mktemp("data")
    rows = [{"question": f"how many is {i}" + " or so" * (7 * i % 3), "answer": f"#### {i}"} for i in range(21)]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def sampled(tiny_model, data, tmp_path_factory):
    """Rows and evaluation of these questions on a mesh, in batches."""
    task = make_task("gsm8k", str(data), "plain")
    encoder = PromptEncoder(task, tiny_model.tokenizer, [task.row("held_out", i) for i in range(21)])

    def sample(batch, shape, devices):
        mesh = make_mesh(shape, jax.devices()[:devices])
        params = load_params(tiny_model.folder, tiny_model.config, mesh)
        folder = EvaluationFolder(tmp_path_factory.mktemp("kept"), {"questions": 21, "samples": 3}, resume=False)
        found = evaluate(
            Roller(tiny_model, task, encoder, mesh),
            params,
            questions=None,
            samples=3,
            max_new_tokens=6,
            temperature=1.0,
            batch=batch,
            folder=folder,
        )
        return rows_in(folder.path), found

    return sample


@pytest.fixture(scope="module")
def alone(sampled):
    return sampled(8, MeshShape(), 1)


@pytest.mark.parametrize(
    ("batch", "shape"),
    [(8, MeshShape()), pytest.param(4, MeshShape(data=2, fsdp=2, tensor=2), marks=pytest.mark.slow)],
)
def test_rows_depend_neither_on_the_mesh_nor_on_the_batch(sampled, alone, batch, shape):
    rows, found = sampled(batch, shape, 8)
    assert [(row["question_id"], row["sample"]) for row in rows] == [(i, j) for i in range(21) for j in range(3)]
    assert rows == alone[0]
    assert found.rewards.tolist() == alone[1].rewards.tolist()
    assert len({row["completion"] for row in rows}) > 21


def test_rows_hold_what_the_verdict_says(alone):
    rows, found = alone
    columns = {"completion", "tokens", "truncated", "reason", "correct", "correct_strict", "answer", "answer_final"}
    assert columns <= set(rows[0])
    assert found.lengths.sum() == sum(row["tokens"] for row in rows)
    assert found.truncated.sum() == sum(row["truncated"] for row in rows) > 0
    # The tiny model writes numbers, but no marker.
    assert any(row["answer"] is not None for row in rows)
    assert found.format_rate.mean == 0


def test_what_ends_early_is_verified_while_the_rest_is_sampled(tiny_model, data):
    """Long enough that the sampler narrows: two calls of the verifier, which share the completions between them."""
    task = make_task("gsm8k", str(data), "plain")
    rows = [task.row("held_out", i) for i in range(8)]
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    roller = Roller(tiny_model, task, PromptEncoder(task, tiny_model.tokenizer, rows), mesh, slots=16)
    verify, calls = roller.verify, []
    roller.verify = lambda rows, texts: calls.append(list(zip(rows, texts, strict=True))) or verify(rows, texts)
    params = load_params(tiny_model.folder, tiny_model.config, mesh)
    graded = roller(params, rows, seed=0, step=1, samples=4, max_new_tokens=40, temperature=1.0)
    early, late = calls
    assert len(early) >= 24
    assert late
    everything = [(row, text) for row, group in zip(rows, graded.completions, strict=True) for text in group]
    assert sorted(early + late, key=repr) == sorted(everything, key=repr)
    assert [verdict for group in graded.verdicts for verdict in group] == [task.verify(*pair) for pair in everything]


def start(model, *arguments):
    program = "from experiments.evaluate import main; from experiments.command import run; run(main)"
    command = [sys.executable, "-c", program, str(model.folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_killed_twice_and_resumed_is_the_same_row_for_row(call, tiny_model, tmp_path):
    """SIGKILL of a real process between two batches, or in one."""
    arguments = ["--questions", 240, "--batch", 8, "--samples", 2]
    code, out, _ = call(evaluate_command, tiny_model.folder, *arguments, "--output", tmp_path / "whole", "--json")
    assert code == 0
    folder = tmp_path / "killed"
    resumed = [*arguments, "--output", folder, "--resume"]
    kept = [0]
    for _ in range(2):
        process = start(tiny_model, *map(str, resumed))
        try:
            deadline = time.monotonic() + 240
            while len(list(folder.glob("completions/*.parquet"))) < kept[-1] + 6:
                assert process.poll() is None, "ended before it could be killed"
                assert time.monotonic() < deadline, "never came to six batches"
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        kept.append(len(list(folder.glob("completions/*.parquet"))))
    assert 6 <= kept[1] < kept[2] < 30
    code, again, _ = call(evaluate_command, tiny_model.folder, *resumed, "--json")
    assert code == 0
    assert json.loads(again.splitlines()[-1]) == json.loads(out.splitlines()[-1])
    assert len(rows_in(folder)) == 480
    assert rows_in(folder) == rows_in(tmp_path / "whole")
    assert not list(folder.rglob("*.part"))


@pytest.fixture
def evaluated(call, tiny_model, data, tmp_path):
    """The command on the twenty-one questions, and the folder of a first, finished evaluation."""
    shared = ("--task", "gsm8k", "--prompt-format", "plain", "--max-new-tokens", 6, "--batch", 8)

    def invoke(*arguments):
        arguments = arguments if "--data" in arguments else ("--data", data, *arguments)
        return call(evaluate_command, tiny_model.folder, *shared, *arguments)

    code, _, err = invoke("--samples", 3, "--output", tmp_path / "first")
    assert code == 0, err
    return invoke, tmp_path / "first"


def test_a_folder_that_does_not_fit_is_refused(evaluated, data, tmp_path):
    invoke, first = evaluated
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "test.jsonl").write_text((data / "test.jsonl").read_text().replace("is 20", "was 20"))
    (tmp_path / "thesis.tex").write_text("precious")
    other_data = json.loads((first / "evaluation.json").read_text()) | {"data": str(changed)}
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "evaluation.json").write_text(json.dumps(other_data))
    (tmp_path / "moved" / "completions").symlink_to(first / "completions")

    def refused(message, *arguments):
        code, _, err = invoke("--samples", 3, *arguments)
        assert (code, message in err) == (2, True), err

    refused("the folder holds another evaluation; accepted are --resume", "--output", first)
    refused("samples is 2, but the evaluation in", "--output", first, "--resume", "--samples", 2, "--batch", 16)
    refused("temperature is 0.5, but the evaluation in", "--output", first, "--resume", "--temperature", 0.5)
    refused("a file is there", "--output", tmp_path / "thesis.tex")
    refused("holds no evaluation: accepted is a new folder", "--output", tmp_path)
    refused("accepted is --output FOLDER with it", "--resume")
    refused("k is 4: accepted are 1 to the 3 samples", "--k", 1, 4)
    refused("holds no evaluation: accepted is the folder of an evaluation", "--against", tmp_path)
    refused("differ at question 20", "--against", first, "--data", changed)
    refused("evaluations of 20 and of 21 questions", "--against", first, "--questions", 20)
    refused(
        "holds other questions than the data now has", "--output", tmp_path / "moved", "--resume", "--data", changed
    )
    (first / "completions" / "batch_000001.parquet").unlink()
    refused("has 39 of 63 completions", "--against", first)


def test_two_evaluations_are_compared_question_by_question(evaluated, tmp_path):
    invoke, first = evaluated
    # Verdicts are made up, since the tiny model is seldom right: of 3 samples 3, 1, 2 and from then on none.
    for file in (first / "completions").iterdir():
        schema = pyarrow.parquet.read_schema(file)
        table = pyarrow.parquet.read_table(file).to_pylist()
        for row in table:
            row["correct"] = row["sample"] < {0: 3, 1: 1, 2: 2}.get(row["question_id"], 0)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table, schema), file)
    flags = ("--samples", 3, "--temperature", 0, "--against", first, "--output", tmp_path / "second", "--resume")
    code, out, _ = invoke(*flags, "--json")
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    # Greedy samples are alike, so a question is right or wrong.
    right = [row["correct"] for row in rows_in(tmp_path / "second")][::3]
    pairs = list(zip(map(float, right), [1, 1 / 3, 2 / 3, *[0] * 18], strict=True))
    assert summary["accuracy"]["mean"] == pytest.approx(sum(right) / 21)
    assert summary["against"]["accuracy"]["difference"] == pytest.approx((sum(right) - 2) / 21)
    mcnemar = summary["against"]["accuracy"]["mcnemar"]
    assert mcnemar["better"] == sum(here > there for here, there in pairs)
    assert mcnemar["worse"] == sum(here < there for here, there in pairs) > 0
    assert summary["against_differs_in"] == {"temperature": [0.0, 1.0]}
    code, out, _ = invoke(*flags)
    assert code == 0
    assert "p (McNemar)" in out
    assert "temperature: 0.0 here, 1.0 there" in out
    assert max(map(len, out.splitlines())) <= 100
