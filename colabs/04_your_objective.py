# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own objective: write one, test it, race it
#
# An objective is data: advantage, surrogate, aggregation and KL put together by a frozen dataclass. Here is an
# advantage that keeps Sign's signal in silent groups but softens it where nearly everything is right.

# %%
# Install; does nothing where the package is there already.
import importlib.util
from pathlib import Path

SOURCE = None  # "git+https://..." with the address of the repository, where this is not opened in a checkout of it

if importlib.util.find_spec("rlvr_jax") is None:
    checkout = next((path for path in (Path.cwd(), *Path.cwd().parents) if (path / "rlvr_jax").is_dir()), None)
    source = SOURCE or checkout
    assert source, "SOURCE is None and this is no checkout: set it to the address of the repository"
    # %pip install -q {source}

# %%
import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments.lab.arms import Lab, arm, run_arms
from experiments.lab.report import draw_band, success_rates
from rlvr_jax import Objective, advantages, starvation

# %% [markdown]
# ## Write
#
# One function of rewards `[..., G]`, pure and traceable. The decorator takes lists, NumPy and JAX arrays of any leading
# shape, and checks them.


# %%
@advantages.advantage()
def tempered_sign(rewards: jax.Array, *, softness: float = 0.5) -> jax.Array:
    """`(2r - 1) * (1 - softness * mean(r))`."""
    return (2 * rewards - 1) * (1 - softness * rewards.mean(-1, keepdims=True))


tempered_sign([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])

# %% [markdown]
# ## Test
#
# By hand; under jit and vmap; and its exact mean update, in multiples of the gradient of the success rate. At
# `softness` 0 it must be Sign.

# %%
rewards = jnp.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
np.testing.assert_allclose(tempered_sign(rewards), [[0.875, -0.875, -0.875, -0.875], [0.5] * 4])
np.testing.assert_allclose(jax.jit(jax.vmap(tempered_sign))(rewards), tempered_sign(rewards))
np.testing.assert_allclose(tempered_sign(rewards, softness=0.0), advantages.sign(rewards))

rates = np.linspace(0.01, 0.99, 99)
figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for each, color, style in (
    (tempered_sign, "#009E73", "-."),
    (advantages.sign, "#D55E00", "-"),
    (advantages.group_mean, "#0072B2", "--"),
):
    axes.plot(
        rates, starvation.expected_update(each, rates, 4).total, color=color, linestyle=style, label=each.__name__
    )
axes.set(xlabel="success rate p", ylabel="multiple of grad p", title="mean update, G = 4")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Race
#
# In the lab, on the same questions with the same sampling noise as the objectives that it is to beat.

# %% tags=["settings"]
lab = Lab(samples=4, steps=150, evaluate_every=15, success_rate=0.2)
seeds = range(3)

# %%
mine = dataclasses.replace(arm(lab, "sign"), name="tempered_sign", objective=Objective(tempered_sign))
arms = [mine, arm(lab, "sign"), arm(lab, "group_mean")]
traces = run_arms(lab, arms, seeds, [lab.base])

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
for place, (each, trace) in enumerate(zip(arms, traces, strict=True)):
    draw_band(axes, np.arange(0, lab.steps + 1, lab.evaluate_every), success_rates(trace), each.name, place)
axes.set(xlabel="step", ylabel="held-out accuracy")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# It deserves a name? One line in `rlvr_jax/objectives/registry.py`, and every command knows it:
# `python -m experiments.compare --objectives tempered_sign sign group_mean --seeds 0 1 2 3`.
