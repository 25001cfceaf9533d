"""Command lines end to end on the tiny model: output, exit status, and one line for each mistake."""

import json

import pyarrow.parquet
import pytest

from experiments import benchmark, compare, evaluate, objectives, report, show_prompts
from experiments import train as train_command
from rlvr_jax import OBJECTIVES

TINY_RUN = (
    "--steps", "2", "--evaluate-every", "0", "--evaluation-questions", "16", "--evaluation-batch", "16"
)  # fmt: skip


def test_compare_prints_table_json_and_figure(call, tiny_model, tmp_path):
    flags = ("--model", tiny_model.folder, "--output", tmp_path / "c", *TINY_RUN, "--seeds", 0, 1)
    code, out, _ = call(compare, "smollm2_arithmetic", *flags, "--json")
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    assert set(summary["objectives"]) == {"sign", "group_mean_std"}
    assert summary["differences"][0]["objectives"] == ["sign", "group_mean_std"]
    assert summary == json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert (tmp_path / "c" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    for name in ("sign", "group_mean_std", "(untrained)"):
        assert name in out
    first = [(tmp_path / "c" / f"{name}-seed0" / "metrics.jsonl").read_text() for name in ("sign", "group_mean_std")]
    rewards = [json.loads(text.splitlines()[0])["reward"] for text in first]
    assert rewards[0] == rewards[1], "same prompts and noise at the first step"

    code, out, err = call(report, tmp_path / "c", "--out", tmp_path / "report", "--json")
    assert code == 0, err
    numbers = json.loads(out.splitlines()[-1])
    for name, figures in summary["objectives"].items():
        assert numbers["methods"][name] | figures == numbers["methods"][name]
        # Recomputed from the verdicts, and counted as the run went on.
        assert numbers["advantages"][name]["zero"] == pytest.approx(figures["wasted_samples"])
    assert "untrained" in (tmp_path / "report" / "figures" / "pass_at_k.svg").read_text()

    code, _, err = call(compare, "smollm2_arithmetic", *flags)
    assert (code, "holds another run; accepted are --resume" in err) == (2, True)
    (tmp_path / "c" / "sign-seed1" / "evaluations" / "step_000002.json").unlink()
    code, out, _ = call(compare, "smollm2_arithmetic", *flags, "--resume", "--json")
    assert code == 0
    resumed = json.loads(out.splitlines()[-1])
    assert resumed["objectives"]["sign"]["accuracy"] == summary["objectives"]["sign"]["accuracy"]


def test_one_seed_names_no_winner(call, tiny_model, tmp_path):
    code, out, _ = call(compare, "--model", tiny_model.folder, "--output", tmp_path / "c", *TINY_RUN)
    assert code == 0
    assert "no objective is the winner" in " ".join(out.split())


def test_train_then_evaluate_the_run(call, tiny_model, tmp_path):
    """With stop strings, which the evaluation takes from the run: no completion goes on after one, all keep it."""
    flags = ("--model", tiny_model.folder, "--output", tmp_path / "run", *TINY_RUN, "--stop", "ab", "1", "+")
    code, out, _ = call(train_command, "smollm2_arithmetic", *flags, "--json")
    assert code == 0
    trained = json.loads(out.splitlines()[-1])["objectives"]["sign"]["accuracy"]
    code, out, _ = call(evaluate, tmp_path / "run", "--questions", 16, "--json", "--output", tmp_path / "evaluation")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["accuracy"] == trained
    assert json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())["stop"] == ["ab", "1", "+"]
    rows = pyarrow.parquet.read_table(tmp_path / "run" / "completions").to_pylist()
    rows += pyarrow.parquet.read_table(tmp_path / "evaluation" / "completions").to_pylist()
    stopped = [row for row in rows if row["completion"].endswith(("ab", "1", "+"))]
    assert not any(row["truncated"] for row in stopped)
    assert not any(text in row["completion"][:-1] for row in rows for text in ("ab", "1", "+"))
    assert 5 < len(stopped) < len(rows) / 2
    code, out, _ = call(evaluate, tiny_model.folder, "--questions", 16, "--temperature", 0)
    assert code == 0
    assert "accuracy" in out


def test_gsm8k_reports_strict_flexible_and_final(call, tiny_model, tmp_path):
    rows = [{"question": f"how many is {i}", "answer": f"it is {i}\n#### {i}"} for i in range(24)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = ("--data", tmp_path, "--prompt-format", "plain", "--max-new-tokens", 8, "--questions", 20, "--batch", 8)
    code, _, err = call(evaluate, tiny_model.folder, "--task", "gsm8k", *shared)
    # The tiny tokenizer knows no capital letters; its prompts are shorter, not wrong.
    assert code == 0, err
    code, out, _ = call(evaluate, tiny_model.folder, "--task", "gsm8k", *shared, "--json")
    summary = json.loads(out.splitlines()[-1])
    assert {"accuracy", "strict", "flexible", "final", "truncated"} <= set(summary)
    assert summary["questions"] == 20


def test_show_prompts(call, tiny_model):
    code, out, _ = call(show_prompts, "arithmetic", tiny_model.folder, "--rows", 2)
    assert code == 0
    assert "8|2|" in out
    code, out, _ = call(show_prompts, "arithmetic", tiny_model.folder, "--rows", 2, "--json")
    assert len(json.loads(out.splitlines()[-1])["prompts"]) == 2


def test_dry_run_checks_and_leaves_nothing(call, tiny_model, tmp_path):
    flags = ("--model", tiny_model.folder, "--output", tmp_path / "run")
    code, out, _ = call(train_command, "smollm2_arithmetic", *flags, "--dry-run", "--json")
    assert code == 0
    printed = json.loads(out)
    assert printed["steps"] == 40
    # 8 prompts by 4 samples of up to 5 tokens; 256 questions by 4 samples before, every 10 steps and after.
    assert printed["plan"]["work"] == {
        "steps": 40, "completions": 1280, "new_tokens": 6400, "updates": 40, "evaluations": 5,
        "evaluated_completions": 5120, "evaluated_tokens": 25600, "checkpoints": 2,
    }  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (train_command, ["nothing"], "preset is 'nothing', accepted are smollm2_arithmetic, gsm8k"),
        (train_command, [], "preset is None, accepted are"),
        (train_command, ["gsm8k", "--model", "nowhere.gguf", "--prompts-per-step", "8"], "no such file"),
        (
            train_command,
            ["smollm2_arithmetic", "--mesh.data", "64"],
            "the product must be the number of devices, which is 8",
        ),
        (
            train_command,
            ["smollm2_arithmetic", "--samples-per-prompt", "1", "--objective", "group_mean"],
            "accepted is 2 or more",
        ),
        (compare, ["--objective", "group_mean"], "compare takes --objectives"),
        (compare, ["--seeds", "1", "1"], "accepted are one or more different ones"),
        (compare, ["--objectives", "sign", "magic"], "objective is 'magic'"),
        (evaluate, ["nowhere/at/all"], "no such file or folder"),
        (evaluate, ["nowhere/at/all", "--stop", ""], "stop is ['']: one is empty"),
        (show_prompts, ["nothing"], "task is 'nothing', accepted are"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_two(call, module, arguments, message):
    code, out, err = call(module, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert out == ""


@pytest.mark.parametrize("flag", [["--steps", "many"], ["--surrogate", "dpo"], ["--nonsense"]])
def test_flags_that_cannot_be_parsed_exit_with_two(call, flag):
    assert call(train_command, "smollm2_arithmetic", *flag)[0] == 2


def test_objectives_prints_every_objective_and_computes_what_uniform_groups_get(call):
    code, out, _ = call(objectives, "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out.splitlines()[-1])["objectives"]}
    assert list(rows) == list(OBJECTIVES)
    assert all(row["formula"] and row["family"] and row["source"] for row in rows.values())
    sides = {name: (*row["all_wrong"], *row["all_right"]) for name, row in rows.items()}
    assert sides["sign"] == (-1, -1, 1, 1)
    assert sides["w_reinforce"] == pytest.approx((-1, -1, 0.1, 0.1))
    assert sides["ngrpo"] == pytest.approx((-(5**-0.5), -(5**-0.5), 0, 0), abs=1e-5)
    silent = """group_mean group_mean_std rloo grpo drgrpo dapo gspo cispo gmpo sapo fipo opo opmd max_rl mapo f_grpo
    lite_ppo reinforce_plus_plus_baseline gpg bnpo pass_at_k pkpo"""
    assert {name for name, values in sides.items() if not any(values)} == set(silent.split())

    _, out, _ = call(objectives, "sign", "lens")
    assert "2r - 1" in out
    assert "log-probs," in out
    code, _, err = call(objectives, "grop")
    assert (code, "objective is 'grop', accepted are sign" in err) == (2, True)


def test_benchmark_of_objectives_fails_where_one_is_too_slow(call):
    small = ("objectives", "--groups", "8", "--samples", "4", "--repeats", "2", "--json")
    code, out, _ = call(benchmark, *small, "--limit", "1e9")
    assert code == 0
    figures = json.loads(out.splitlines()[-1])
    assert {"sign", "group_mean", "pkpo", "bnpo", "r - mean(r)"} <= set(figures["advantages"])
    assert call(benchmark, *small, "--limit", "0.001")[0] == 1
