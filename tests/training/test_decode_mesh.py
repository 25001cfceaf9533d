"""Sampling on another mesh than training, over the same devices."""

import dataclasses

import jax
import numpy as np
import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.models import load_params
from rlvr_jax.sharding import MeshShape, named_sharding
from rlvr_jax.training import TrainConfig, prepare


@pytest.fixture(scope="module")
def config(tiny_model):
    return TrainConfig(model=str(tiny_model.folder), mesh=MeshShape(1, 8, 1))


def test_tokens_are_the_same_and_come_back_where_they_are_trained_on(config, tiny_model):
    found = []
    for decode_mesh in (None, (4, 1, 2)):
        setup = prepare(dataclasses.replace(config, decode_mesh=decode_mesh))
        params = load_params(tiny_model.folder, tiny_model.config, setup.mesh)
        rows = [setup.roller.task.row("train", i) for i in range(8)]
        found.append(setup.roller(params, rows, seed=0, step=1, samples=4, max_new_tokens=6, temperature=1.0))
        assert setup.roller.decode_mesh.shape["tensor"] == (2 if decode_mesh else 1)
        where = named_sharding(setup.mesh, ("batch",))
        for array in jax.tree.leaves((found[-1].prompts, found[-1].rollouts)):
            assert array.sharding.is_equivalent_to(where, array.ndim)
    alone, other = found
    np.testing.assert_array_equal(alone.rollouts.tokens, other.rollouts.tokens)
    np.testing.assert_allclose(alone.rollouts.log_probabilities, other.rollouts.log_probabilities, atol=1e-5)
    assert alone.completions == other.completions
    assert len({text for group in alone.completions for text in group}) > 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decode_mesh": (8, 1, 1), "evaluation_batch": 12}, "evaluation_batch is 12: accepted is a multiple"),
        (
            {"decode_mesh": (4, 1, 2), "slots": 6},
            r"slots is 6: accepted is a multiple of 4 \(data x fsdp device",
        ),
        ({"decode_mesh": (2, 1, 2)}, "mesh is data=2, fsdp=1, tensor=2: the product must be"),
        ({"decode_mesh": (1, 1, 8)}, "mesh axis tensor is 8: accepted is a divisor of num_attention_heads"),
    ],
)
def test_a_decode_mesh_that_does_not_fit_is_named(config, change, message):
    with pytest.raises(UserError, match=message):
        prepare(dataclasses.replace(config, **change))
