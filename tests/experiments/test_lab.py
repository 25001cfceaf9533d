"""The lab: its task and verifier, its exact skill, its updates against exact gradients, runs side by side and alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lab.arms import Lab, arm, controls, run_arms
from experiments.lab.policy import WarmStart, skill, stacked, warm_start
from experiments.lab.report import rival_of
from experiments.lab.run import Program, Runs, gradients_of, roll_out, simulate
from experiments.lab.task import END, EQUALS, PLUS, Sums, right, well_formed
from experiments.lab.theory import signal_to_noise
from rlvr_jax.errors import UserError
from rlvr_jax.models import ModelConfig, token_log_probabilities
from rlvr_jax.objectives import OBJECTIVES, Loss, Objective
from rlvr_jax.records import Prompts
from rlvr_jax.starvation import signal_to_noise as of_one_prompt

MODEL = ModelConfig(13, 16, 24, 1, 2, 2, 8, 10000.0, 1e-5, True)
TASK = Sums(digits=1, held_out=20)
LAB = Lab(prompts=4, steps=4, evaluate_every=2, success_rate=0.25, model=MODEL, task=TASK)


@pytest.fixture(scope="module")
def base():
    return LAB.base


def test_prompts_and_answers_by_hand():
    task, questions = Sums(), jnp.array([5738, 1, 9999, 409])
    np.testing.assert_array_equal(task.prompts(questions)[0], [5, 7, PLUS, 3, 8, EQUALS])
    np.testing.assert_array_equal(task.prompts(questions)[3], [0, 4, PLUS, 0, 9, EQUALS])
    tokens, mask = task.answers(questions)
    np.testing.assert_array_equal(tokens, [[9, 5, END, 0], [1, END, 0, 0], [1, 9, 8, END], [1, 3, END, 0]])
    np.testing.assert_array_equal(mask.sum(-1), [3, 2, 4, 3])
    np.testing.assert_allclose(task.levels(questions), [5 / 9, 0, 1, 0], atol=1e-6)
    train, held_out = task.split()
    assert sorted([*train, *held_out]) == list(range(10_000))


def test_verifier_wants_the_number_and_its_end():
    completions = jnp.array([[[9, 5, END, 0], [9, 5, 0, 0], [9, 5, END, END], [9, 6, END, 0], [END, 0, 0, 0]]])
    lengths = jnp.array([[3, 4, 4, 3, 1]])
    mask = jnp.arange(4) < lengths[..., None]
    answers = Sums().answers(jnp.array([5738]))
    np.testing.assert_array_equal(right(completions, mask, answers), [[True, False, False, False, False]])
    np.testing.assert_array_equal(well_formed(completions, mask), [[True, False, False, True, False]])


def test_skill_is_the_probability_of_the_right_completion(base):
    questions = jnp.arange(100)
    answers, tokens = TASK.answers(questions), TASK.prompts(questions)
    prompts = Prompts(tokens, jnp.ones(tokens.shape, bool), questions.astype(jnp.uint32))
    none, one = jnp.zeros(0, jnp.int32), jnp.float32(1.0)
    scores = token_log_probabilities(base.params, none, prompts, answers.tokens[:, None], one, config=MODEL)[:, 0]
    found = skill(base.params, questions, model=MODEL, task=TASK)
    np.testing.assert_allclose(found.log_success, jnp.where(answers.mask, scores, 0).sum(-1), atol=2e-5)
    # A completion whose every token is the likeliest has at least the chance of 13 equal ones at each token.
    assert (found.log_success[found.greedy] >= -3 * np.log(13)).all()


def test_supervised_start_ends_where_it_is_asked_to(base):
    held_out = TASK.split()[1]
    rate = jnp.exp(skill(base.params, held_out, model=MODEL, task=TASK).log_success).mean()
    assert float(base.success_rate) == pytest.approx(float(rate), rel=1e-5)
    assert 0.25 <= base.success_rate < 0.35
    with pytest.raises(UserError, match=r"success_rate is 0.9 .* 3 supervised steps reach"):
        warm_start(0.9, 0.0, 0, WarmStart(MODEL, TASK, most_steps=3))
    with pytest.raises(UserError, match="heterogeneity is 2"):
        warm_start(0.9, 2, 0, WarmStart(MODEL, TASK))


def all_wrong_part(rewards):
    """Sign, of groups without a right sample."""
    return jnp.where(rewards.max(-1, keepdims=True) == 0, 2 * rewards - 1, 0.0)


@pytest.mark.slow
def test_sign_climbs_pass_at_g_on_all_wrong_groups(base):
    """Mean update over 120 x 1,024 sampled groups, against the exact gradient of pass@4 on the same questions."""
    samples, batches, questions = 4, 120, jnp.tile(jnp.arange(8) * 11, 128)
    objective = Objective(all_wrong_part, Loss(aggregation="sequence_sum"))
    program = Program(MODEL, TASK, (objective,), "sgd", len(questions), samples, 1, 1)

    @jax.jit
    def sampled(step):
        batch, _ = roll_out(base.params, questions, jnp.uint32(5), step, jnp.int32(0), program=program)
        gradient = gradients_of(base.params, batch, base.params, program=program)
        # The loss is minus the mean over samples; a group is the sum of its own.
        return -samples * jax.flatten_util.ravel_pytree(gradient)[0]

    def pass_at_g(params):
        rates = jnp.exp(skill(params, questions[:8], model=MODEL, task=TASK).log_success)
        return jnp.mean(1 - (1 - rates) ** samples)

    exact = np.float64(jax.flatten_util.ravel_pytree(jax.grad(pass_at_g)(base.params))[0])
    draws = np.float64([sampled(jnp.int32(i)) for i in range(batches)])
    along = draws @ exact / (exact @ exact)
    error = along.std(ddof=1) / batches**0.5
    assert error < 0.075
    assert abs(along.mean() - 1) < 4 * error
    # Across all directions: the squared distance of the mean is the noise that is left in it, not more.
    distance = np.sum((draws.mean(0) - exact) ** 2)
    noise = draws.var(0, ddof=1).sum() / batches
    assert distance < 2 * noise


@pytest.fixture(scope="module")
def traces(base):
    arms = [arm(LAB, name) for name in ("sign", "group_mean", "half_reference")]
    return run_arms(LAB, arms, (0, 1, 2), [base])


def test_runs_are_the_same_alone_and_among_others(base, traces):
    one = Runs(*(np.array([x], kind) for x, kind in ((2, "uint32"), (0, "int32"), (0, "int32"))),
               np.array([LAB.learning_rate], np.float32), np.array([1.0], np.float32))  # fmt: skip
    program = arm(LAB, "group_mean").program(LAB)
    alone = simulate(stacked([base]), one, program, jax.devices()[:1])
    np.testing.assert_allclose(alone.log_success[0], traces[1].log_success[2], atol=1e-4)
    np.testing.assert_array_equal(alone.metrics["reward"][0], traces[1].metrics["reward"][2])
    again = run_arms(LAB, [arm(LAB, "group_mean")], (0, 1, 2), [base])[0]
    np.testing.assert_allclose(again.log_success, traces[1].log_success, atol=1e-4)


def test_arms_start_alike_and_part(traces):
    sign, mean, half = traces
    for other in (mean, half):
        np.testing.assert_array_equal(sign.log_success[:, 0], other.log_success[:, 0])
        # The first rollouts come from one policy, with one noise.
        np.testing.assert_array_equal(sign.metrics["reward"][:, 0], other.metrics["reward"][:, 0])
    assert len({float(x) for x in sign.metrics["entropy"][:, 0]}) == 3
    assert np.abs(sign.log_success[:, -1] - mean.log_success[:, -1]).max() > 1e-3
    # Half of the advantage is half of the gradient.
    np.testing.assert_allclose(half.metrics["gradient_norm"][:, 0], sign.metrics["gradient_norm"][:, 0] / 2, rtol=1e-4)
    for name in ("degeneracy", "truncated", "well_formed"):
        assert ((sign.metrics[name] >= 0) & (sign.metrics[name] <= 1)).all()


def test_controls_have_equal_samples_and_the_scales_of_theory():
    arms = {each.name: each for each in controls(Lab())}
    assert {each.prompts * each.samples for each in arms.values()} == {64}
    scaled = arms["group_mean, SGD, step x 2G/(G-1)"]
    assert scaled.learning_rate == pytest.approx(Lab().sgd_learning_rate * 8 / 3)
    assert arms["sign, KL 0.04"].objective.loss.kl.coefficient == 0.04
    assert arms["group_mean, G = 16"].prompts == 4
    with pytest.raises(UserError, match="accepted in the lab are those that need rewards alone"):
        arm(Lab(), "spo")
    with pytest.raises(UserError, match="samples is 3"):
        arm(Lab(), "sign", samples=3)


@pytest.mark.parametrize(("field", "value"), [("steps", 31), ("samples", 1), ("learning_rate", 0.0)])
def test_a_lab_refuses_what_does_not_fit(field, value):
    with pytest.raises(UserError, match=f"{field} is {value}"):
        dataclasses.replace(Lab(), **{field: value})


def test_theory_of_equal_prompts_is_that_of_one():
    for name, rate in (("sign", 0.02), ("group_mean", 0.3)):
        advantage = OBJECTIVES[name].advantage
        logits = jnp.log(jnp.array([rate, *[(1 - rate) / 10] * 10]))
        expected = of_one_prompt(advantage, logits, jnp.arange(11) == 0, 4)
        assert signal_to_noise(advantage, np.full(5, rate), 4) == pytest.approx(float(expected), rel=1e-4)


def test_theory_favours_sign_at_even_odds_and_the_group_mean_at_rare_success():
    def ratio(rate):
        sign, mean = (
            signal_to_noise(OBJECTIVES[name].advantage, np.array([rate]), 4) for name in ("sign", "group_mean")
        )
        return sign / mean

    assert ratio(0.5) > 1
    assert ratio(0.02) < 0.5


def test_arms_are_compared_with_sign_under_the_same():
    names = [each.name for each in controls(Lab())]
    expected = {
        "rloo": "sign",
        "group_mean, step x 2G/(G-1)": "sign",
        "sign, SGD": "sign",
        "group_mean, SGD, step x 2G/(G-1)": "sign, SGD",
        "group_mean, G = 8": "sign, G = 8",
        "group_mean, KL 0.04": "sign, KL 0.04",
    }
    assert {name: rival_of(name, names) for name in expected} == expected
