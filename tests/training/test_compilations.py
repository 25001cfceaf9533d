"""Invariant 8: after the first step nothing recompiles, whatever may change from one step to the next."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import PREFIX, TINY

from rlvr_jax.models import param_shardings
from rlvr_jax.objectives import OBJECTIVES, Loss
from rlvr_jax.records import Prompts
from rlvr_jax.sampling import Request, SamplingSettings, begin, finish, sampler, stop_strings
from rlvr_jax.sampling.truncation import Truncation
from rlvr_jax.training import UpdateSettings, init_state, make_batch, make_optimizer, update
from rlvr_jax.training.compilations import compilations
from rlvr_jax.training.optimizer import OptimizerSettings

OPTIMIZER = OptimizerSettings(1e-3, warmup_steps=2, weight_decay=0.0, beta1=0.9, beta2=0.95, max_gradient_norm=1.0)
SAMPLING = SamplingSettings(TINY, samples=2, max_new_tokens=6, slots=5)
UPDATE = UpdateSettings(TINY, Loss(), OPTIMIZER)
TEXTS = [b"%d" % token for token in range(TINY.vocab_size)]


def varied_request(generator: np.random.Generator, step: int) -> Request:
    """Nothing but the shapes is that of another step."""
    mask = np.arange(5) < generator.integers(1, 6, (4, 1))
    tokens = np.where(mask, generator.integers(1, TINY.vocab_size, (4, 5)), 0)
    cut = Truncation(
        jnp.int32(generator.integers(0, 20)), jnp.float32(generator.uniform(0.5, 1)), jnp.float32(generator.random())
    )
    strings = [str(number) for number in generator.integers(0, 1000, generator.integers(1, 5))]
    return Request(
        PREFIX,
        Prompts(tokens.astype(np.int32), mask, generator.integers(0, 2**32, 4, np.uint32)),
        generator.integers(0, TINY.vocab_size, 3).astype(np.int32),
        jnp.uint32(generator.integers(0, 2**32, dtype=np.uint32)),
        jnp.int32(step),
        jnp.float32(generator.choice([0.0, 0.7, 1.0, 1.3])),
        generator.integers(1, 7, (4, 2)),
        cut,
        stop_strings(strings, TEXTS),
    )


def compiled_by_steps(params, mesh, steps, begin=begin):
    """Programs compiled by each step of sampling and updating."""
    generator, counts = np.random.default_rng(0), []
    placed = jax.device_put(params, param_shardings(TINY, mesh))
    state = init_state(placed, 0, config=TINY, optimizer=make_optimizer(OPTIMIZER), mesh=mesh)
    for step in range(steps):
        before = compilations()
        request = varied_request(generator, step)
        begun, slots = begin(state.params, request, settings=SAMPLING)
        rollouts = finish(state.params, request, begun, slots, settings=SAMPLING)
        rewards = generator.integers(0, 2, (4, 2)).astype(np.float32)
        batch, _ = make_batch(request.prompts, rollouts, rewards, None, None, objective=OBJECTIVES["sign"])
        state, _ = update(state, batch, PREFIX, request.temperature, None, settings=UPDATE, mesh=mesh)
        counts.append(compilations() - before)
    return counts


def test_fifty_varied_steps_compile_once(params, one_device):
    first, *others = compiled_by_steps(params, one_device, 50)
    assert first >= 4
    assert others == [0] * 49


@pytest.mark.slow
def test_a_temperature_that_is_compiled_in_is_seen(params, one_device):
    def compiled_in(params, request, temperature, settings):
        return sampler.begin(params, request._replace(temperature=jnp.float32(temperature)), settings=settings)

    static = jax.jit(compiled_in, static_argnames=("temperature", "settings"))

    def broken(params, request, *, settings):
        return static(params, request._replace(temperature=None), float(request.temperature), settings)

    assert sum(compiled_by_steps(params, one_device, 6, broken)[1:]) > 0
