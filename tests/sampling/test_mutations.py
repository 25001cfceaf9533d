"""The sampler broken on purpose: each break is seen by the test of the invariant that it hurts."""

import jax
import jax.numpy as jnp
import pytest
import test_sampler
from conftest import PREFIX

from rlvr_jax.sampling import sampler, slots

pytestmark = pytest.mark.slow


def without_stop_tokens(rollouts):
    """As samplers do that cut the end-of-sequence token off."""

    def broken(**fields):
        stops = jnp.isin(fields["tokens"], test_sampler.STOPS)
        return rollouts(**{**fields, "mask": fields["mask"] & ~stops})

    return broken


def seeing_pads(run_tree):
    """Prompts are run as if every pad were a token."""

    def broken(model, config, tree):
        return run_tree(model, config, tree._replace(prompt_mask=jnp.ones_like(tree.prompt_mask)))

    return broken


def counting_pads(completion_start):
    return lambda prefix, mask: completion_start(prefix, jnp.ones_like(mask))


def one_position_on(rotation):
    return lambda config, positions: rotation(config, positions + 1)


def the_same_every_step(sequence_keys):
    return lambda seed, step, ids, samples: sequence_keys(seed, step * 0, ids, samples)


def by_place_in_the_batch(sequence_keys):
    return lambda seed, step, ids, samples: sequence_keys(seed, step, jnp.arange(len(ids), dtype=jnp.uint32), samples)


def by_order_of_arrival(fill):
    """A slot's next completion starts with the past of its last one."""

    def broken(state, queue, samples, prompt_states):
        filled = fill(state, queue, samples, prompt_states)
        return filled._replace(length=jnp.where(filled.running, jnp.maximum(filled.length, state.length), 1))

    return broken


def searching_on(fill):
    """A slot's next completion goes on with the search for stop strings of its last one."""

    def broken(state, queue, samples, prompt_states):
        return fill(state, queue, samples, prompt_states)._replace(stop_state=state.stop_state)

    return broken


def searching_from_the_second_token(fill):
    def broken(state, queue, samples, prompt_states):
        return fill(state, queue._replace(stop_states=0 * queue.stop_states), samples, prompt_states)

    return broken


def searching_in_other_slots(narrow):
    def broken(state, width):
        return narrow(state, width)._replace(stop_state=state.stop_state[:, :width])

    return broken


def seeing_one_token_less(earlier):
    def broken(self):
        return earlier(self._replace(length=self.length - 1))

    return broken


@pytest.mark.parametrize(
    ("where", "name", "breaks", "test"),
    [
        (sampler, "Rollouts", without_stop_tokens, "test_stop_token_is_kept_and_ends_the_completion"),
        (sampler, "run_tree", seeing_pads, "test_rollouts_do_not_depend_on_the_batch_they_ran_in"),
        (sampler, "completion_start", counting_pads, "test_rollouts_do_not_depend_on_the_batch_they_ran_in"),
        (sampler, "rotation", one_position_on, "test_log_probabilities_are_the_trainers"),
        (slots.Slots, "earlier", seeing_one_token_less, "test_log_probabilities_are_the_trainers"),
        (sampler, "sequence_keys", the_same_every_step, "test_two_steps_share_no_noise_and_one_step_repeats"),
        (sampler, "sequence_keys", by_place_in_the_batch, "test_rollouts_do_not_depend_on_the_batch_they_ran_in"),
        (sampler, "fill", by_order_of_arrival, "test_tokens_do_not_depend_on_the_number_of_slots"),
        (sampler, "fill", searching_on, "test_tokens_do_not_depend_on_the_number_of_slots"),
        (sampler, "fill", searching_from_the_second_token, "test_tokens_do_not_depend_on_the_number_of_slots"),
        (sampler, "narrow", searching_in_other_slots, "test_tokens_do_not_depend_on_the_number_of_slots"),
    ],
    ids=lambda value: value.__name__ if callable(value) and value not in (sampler, slots.Slots) else "",
)
def test_a_broken_sampler_fails(monkeypatch, params, prompts, where, name, breaks, test):
    arguments = {
        "test_log_probabilities_are_the_trainers": {"temperature": 1.0, "prefix": PREFIX},
        "test_tokens_do_not_depend_on_the_number_of_slots": {
            "changes": {},
            "slots": 24 if name == "narrow" else 5,
            "rows": 1,
        },
    }
    run = getattr(test_sampler, test)
    run(params, prompts, **arguments.get(test, {}))
    # Programs of the whole sampler are in JAX's caches.
    jax.clear_caches()
    monkeypatch.setattr(where, name, breaks(getattr(where, name)))
    try:
        with pytest.raises(AssertionError):
            run(params, prompts, **arguments.get(test, {}))
    finally:
        monkeypatch.undo()
        jax.clear_caches()
