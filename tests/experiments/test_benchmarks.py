"""The benchmarks' works, figures and exit status, and that ours and the peers do the same; nothing here is timed."""

import json

import numpy as np
import pytest
from conftest import TINY

from experiments import benchmark
from experiments.benchmarks import accelerator, checkpoints, lab, sampling, step, turns, update, work
from experiments.benchmarks.peers import torch as torch_peer
from rlvr_jax.training import TrainConfig

SMALL = work.WorkSettings(prompts=4, samples=3, shortest_prompt=2, longest_prompt=5, mean_length=4, max_length=7)


def rounds(count):
    """So many turns."""
    return iter([True] * count + [False]).__next__


def test_work_has_the_lengths_that_are_asked_for():
    made = work.make_work(work.WorkSettings(), 49152)
    assert made.tokens.shape == (16, 128)
    assert made.completions.shape == (16, 8, 128)
    assert made.lengths.mean() == pytest.approx(48, abs=0.5)
    assert (made.lengths.min(), made.lengths.max()) == (pytest.approx(8, abs=8), 128)
    assert ((made.completions > 0) == made.completion_mask).all()


def test_each_alone_has_its_own_copy_of_its_prompt():
    made = work.make_work(SMALL, 96)
    alone = made.each_alone()
    assert alone.completions.shape == (12, 1, 7)
    np.testing.assert_array_equal(alone.tokens[4], made.tokens[1])
    np.testing.assert_array_equal(alone.completions[4, 0], made.completions[1, 1])
    tokens, mask = made.left_padded()
    np.testing.assert_array_equal(mask.sum(-1), np.repeat(made.mask.sum(-1), 3))
    assert mask[:, -1].all()
    np.testing.assert_array_equal(tokens[4][mask[4]], made.tokens[1][made.mask[1]])


def test_forward_flops_against_a_count_by_hand():
    # Weights of a layer: queries and output 2 x 32 x 32, keys and values 2 x 32 x 16, MLP 3 x 32 x 48, two norms.
    layers = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32
    # One prefix token, a prompt of 2, completions of 1 and 3 tokens, of which 0 and 2 are run.
    seen = 1 + (2 + 3) + (4 + 5)
    expected = 2 * (5 * layers + 4 * 96 * 32) + 2 * 4 * 32 * seen
    assert work.forward_flops(TINY, np.array([2]), np.array([[1, 3]]), prefix=1) == expected


@pytest.mark.slow
def test_update_is_the_one_that_torch_does(tiny_model, monkeypatch):
    monkeypatch.setattr(update, "matrix_product_gflops", lambda: 1.0)
    made = work.make_work(SMALL, TINY.vocab_size)
    figures = update.ours(tiny_model, made, 2, rounds(2))
    assert 0 < figures["gradient_difference"] <= update.GRADIENT_DIFFERENCE
    of_torch = torch_peer.update(tiny_model.folder, made, update.OPTIMIZER, 5, rounds(1))
    assert figures["gradient_norm"] == pytest.approx(of_torch["gradient_norm"], rel=1e-4)
    assert figures["gflop"] == 3e-9 * work.forward_flops(TINY, made.mask.sum(-1), made.lengths)


@pytest.mark.slow
def test_dense_update_is_the_one_that_torch_does(tiny_model, monkeypatch):
    monkeypatch.setattr(update, "matrix_product_gflops", lambda: 1.0)
    made = work.dense_work(TINY.vocab_size, sequences=2, length=6)
    figures = update.ours(tiny_model, made, 1, rounds(1))
    assert "gradient_difference" not in figures
    of_torch = torch_peer.update(tiny_model.folder, made, update.OPTIMIZER, 2, rounds(1))
    assert figures["gradient_norm"] == pytest.approx(of_torch["gradient_norm"], rel=1e-4)


@pytest.mark.parametrize(("name", "value"), [("gradient_difference", 2e-5), ("norm", 1.01)])
def test_update_fails_where_a_gradient_is_another(call, tiny_model, monkeypatch, name, value):
    of_ours = {"gflop": 2.0, "matrix_product_gflops": 4.0, "gradient_difference": 0.0, "peak_bytes": 1}
    of_ours = {**of_ours, "gradient_norm": 1.0, name: value}
    norm = value if name == "norm" else 1.0
    measured = turns.Measured(
        {"rlvr_jax": [1.0], "torch": [3.0]},
        {"rlvr_jax": of_ours, "torch": {"gradient_norm": norm, "peak_bytes": 2}},
    )
    monkeypatch.setattr(update, "take_turns", lambda sides, repeats: measured)
    code, out, _ = call(benchmark, "update", "--model", tiny_model.folder, "--json")
    assert code == 1
    figures = json.loads(out.splitlines()[-1])
    assert (figures["ratio_to_torch"], figures["dense_ratio_to_torch"]) == (3.0, 3.0)
    assert figures["roofline_fraction"] == 0.5
    assert figures["norm_difference"] == pytest.approx(abs(norm - 1.0))


def test_sampling_counts_tokens_and_keeps_its_floor(call, tiny_model, monkeypatch):
    rate = {"decode_gflops": 1.0, "matrix_product_gflops": 2.0, "peak_bytes": 1}
    measured = turns.Measured({"rlvr_jax": [1.0], "transformers": [3.0]}, dict.fromkeys(sampling.PEERS, rate))
    measured.figures["rlvr_jax"] = rate
    monkeypatch.setattr(sampling, "take_turns", lambda sides, repeats: measured)
    flags = ("--model", tiny_model.folder, "--prompts", 2, "--samples", 2, "--mean-length", 4, "--max-length", 8)
    code, out, _ = call(benchmark, "sampling", *flags, "--peers", "transformers", "--json")
    assert code == 1
    figures = json.loads(out.splitlines()[-1])
    assert figures["tokens_per_second"] == {"rlvr_jax": figures["tokens"], "transformers": figures["tokens"] / 3}
    assert 0 < figures["useful_share"] <= 1
    assert call(benchmark, "sampling", *flags, "--transformers-floor", 3)[0] == 0


def test_sampling_of_ours_has_the_given_lengths(tiny_model, monkeypatch):
    monkeypatch.setattr(sampling, "matrix_product_gflops", lambda: 1.0)
    figures = sampling.ours(tiny_model, work.make_work(SMALL, TINY.vocab_size), 5, rounds(1))
    assert np.isfinite(figures["decode_gflops"])


def test_step_takes_a_turn_at_each_step_of_the_loop(call, tiny_model, monkeypatch):
    monkeypatch.setattr(step, "matrix_product_gflops", lambda: 1.0)

    def in_this_process(sides, repeats):
        times = []
        # It is set up, warms up, and has its rounds; the evaluation at the end is no step.
        own = sides["rlvr_jax"](lambda: times.append(0) or len(times) < repeats + 2)
        assert len(times) == repeats + 2
        figures = {"rlvr_jax": own | {"peak_bytes": 1}, "trl": {"peak_bytes": 1}}
        return turns.Measured({"rlvr_jax": [2.0] * repeats, "trl": [9.0] * repeats}, figures)

    monkeypatch.setattr(step, "take_turns", in_this_process)
    flags = ("step", "--model", tiny_model.folder, "--repeats", 2, "--peers", "trl", "--json")
    code, out, _ = call(benchmark, *flags)
    assert code == 1
    figures = json.loads(out.splitlines()[-1])
    assert figures["ratio_to_trl"] == 4.5
    assert figures["recompilations"] == 0
    assert 0 < figures["roofline_fraction"] == figures["gflops"] < 0.1
    assert figures["step_seconds"] == {"median": 2.0, "least": 2.0, "most": 2.0}
    assert figures["sample_seconds"]["least"] > 0


def test_questions_are_those_of_a_run(tiny_model):
    config = TrainConfig(model=str(tiny_model.folder))
    asked = work.questions(config, steps=2)
    assert len(asked.rows) == 16
    assert asked.tokenizer(text=list(asked.texts))["input_ids"] == asked.tokens
    assert asked.texts[3].endswith(asked.rows[3].question)
    assert asked.stop_tokens == [0, *asked.tokenizer.encode("\n")]
    assert [verdict.correct for verdict in asked.verify(asked.rows[:1], [f" {asked.rows[0].answer}\n"])] == [True]


def test_accelerator_tells_shares_of_what_the_device_can_do(call, monkeypatch):
    # Of the product, the copy, all tokens and the first alone, and the update.
    seconds = iter([2.0, 4.0, 3.5, 0.5, 8.0])
    monkeypatch.setattr(accelerator, "best_seconds", lambda call, repeats: (call(), next(seconds))[1])
    decoding, updating = ("--prompt", 8, "--tokens", 4, "--batches", 8), ("--update-groups", 1, "--update-tokens", 8)
    code, out, _ = call(benchmark, "accelerator", *decoding, *updating, "--shapes", "tiny", "--json")
    assert code == 1
    rows = json.loads(out.splitlines()[-1])["rows"]
    assert set(rows) == {"tiny, decode 8", "tiny, update"}
    # Every token a completion reads, in two bytes a number, of two layers: queries and output 2 x 64 x 64, keys and
    # values 2 x 64 x 32, MLP 3 x 64 x 128, norms; of the vocabulary; of its own 4 keys and values and its group's 8.
    weights = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64 + 512 * 64
    read = 2 * (weights + 2 * 2 * 2 * 16 * (8 * 4 + 8))
    copied = 16 * 16 * 512**2 * 4 / 4.0
    assert rows["tiny, decode 8"] == pytest.approx(
        {"milliseconds": 1000.0, "tokens_per_second": 8.0, "share": read / copied / 1.0}
    )
    flops = 3 * work.forward_flops(accelerator.make_shape("tiny"), np.array([8]), np.full((1, 8), 8))
    rate = 16 * 512**3 / 2.0
    assert rows["tiny, update"] == pytest.approx(
        {"seconds": 8.0, "tokens_per_second": 8.0, "share": flops / 8.0 / rate}
    )
    assert call(benchmark, "accelerator", "--batches", 12)[0] == 2


@pytest.mark.parametrize(("slower", "status"), [(1.04, 0), (1.06, 1)])
def test_checkpoints_cost_what_the_saving_side_takes_more(call, monkeypatch, slower, status):
    seconds = {checkpoints.SAVING: [20.0 * slower, 90.0, 10.0 * slower], checkpoints.WITHOUT: [20.0, 20.0, 10.0]}
    measured = turns.Measured(seconds, {checkpoints.SAVING: {"checkpoint_bytes": 10**9}, checkpoints.WITHOUT: {}})
    monkeypatch.setattr(checkpoints, "take_turns", lambda sides, repeats: measured)
    code, out, _ = call(benchmark, "checkpoints", "--json")
    figures = json.loads(out.splitlines()[-1])
    assert (code, figures["cost"]) == (status, pytest.approx(slower - 1))


def test_lab_tells_time_and_work_of_both_forms(call, monkeypatch):
    of_sides = {"accuracy": [0.5, 0.25], "processor_seconds": 7.0, "peak_bytes": 1}
    other = {**of_sides, "accuracy": [0.5, 0.125], "processor_seconds": 8.0}
    seconds = {turns.OURS: [4.0, 5.0, 4.0], "one_by_one": [8.0, 10.0, 8.0]}
    measured = turns.Measured(seconds, {turns.OURS: of_sides, "one_by_one": other})
    monkeypatch.setattr(lab, "take_turns", lambda sides, repeats: measured)
    code, out, _ = call(benchmark, "lab", "--json")
    figures = json.loads(out.splitlines()[-1])
    assert (code, figures["ratio_to_one_by_one"], figures["accuracy_difference"]) == (1, 2.0, 0.125)
    assert figures["processor_seconds"] == {turns.OURS: 7.0, "one_by_one": 8.0}
    assert call(benchmark, "lab", "--floor", 2)[0] == 0
    assert call(benchmark, "lab", "--seeds", 0)[0] == 2


@pytest.mark.parametrize(
    "which", ["lab", "step", "sampling", "update", "objectives", "checkpoints", "smollm2_arithmetic"]
)
def test_no_repeats_are_refused(call, which):
    code, _, err = call(benchmark, which, "--repeats", 0)
    assert (code, err) == (2, "error: repeats is 0, accepted is 1 or more\n")


@pytest.mark.slow
def test_forms_of_the_lab_do_the_same_runs():
    few = lab.LabBenchmark(seeds=2, steps=1, prompts=2, samples=2)
    of_ours, of_others = lab.side_by_side(few, rounds(1)), lab.one_by_one(few, rounds(1))
    np.testing.assert_allclose(of_ours["accuracy"], of_others["accuracy"], atol=1e-6)
    assert len(of_ours["accuracy"]) == 4


@pytest.mark.slow
def test_both_sides_of_checkpoints_take_a_turn_between_saves(tiny_model):
    small = TrainConfig(model=str(tiny_model.folder), checkpoint_every=2)
    arguments = checkpoints.CheckpointsBenchmark(small, repeats=2)
    for every, least in ((2, 1), (0, 0)):
        calls = []
        figures = checkpoints.steps(arguments, every, lambda calls=calls: not calls.append(1))
        # It is set up, warms up, and has its rounds.
        assert len(calls) == arguments.repeats + 2
        assert (figures["checkpoint_bytes"] > 0) == bool(least)
