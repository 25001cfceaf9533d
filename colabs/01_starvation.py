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
# # Gradient starvation, from the primitives
#
# Every sample of a group is right, or every one wrong: an advantage that is centred on the group's mean is then exactly
# zero, and the group says nothing. How often that happens, why it happens more often than the mean success rate tells,
# and what the fixed reference of Sign, `A = 2r - 1`, does there. Everything below is a pure function of arrays.

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
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from ipywidgets import FloatSlider, IntSlider, interact

from rlvr_jax import OBJECTIVES, advantages, starvation

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito's: colour-blind readers can tell them apart

# %% [markdown]
# ## A silent group
#
# Three prompts of four samples each: one mixed, one all wrong, one all right.

# %%
rewards = jnp.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
for name in ("sign", "group_mean", "group_mean_std", "rloo"):
    of_groups, _ = OBJECTIVES[name].advantages({"rewards": rewards})
    print(f"{name:15}", np.round(np.asarray(of_groups), 2).tolist())
print(starvation.degeneracy(rewards))

# %% [markdown]
# ## How many groups are silent
#
# If all prompts had the same success rate p, a share `p^G + (1 - p)^G` would be silent. Prompts differ, and that
# function is convex, so by Jensen the true share is never below it. Here difficulty follows a Beta law of the mean that
# you choose; `spread` goes from equal prompts (0) to prompts that are always or never solved (1).


# %%
def silent_groups(p: float = 0.25, spread: float = 0.55, group_size: int = 4) -> None:
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    rates = np.linspace(0.01, 0.99, 99)
    concentration = 1 / spread - 1
    equal = starvation.bernoulli_prediction(rates, group_size)
    unequal = starvation.beta_binomial_degeneracy(rates * concentration, (1 - rates) * concentration, group_size)
    left.plot(rates, unequal, color=COLORS[1], label="prompts differ")
    left.plot(rates, equal, color=COLORS[0], linestyle="--", label="equal prompts")
    left.axvline(p, color="grey", linewidth=1)
    left.set(xlabel="mean success rate p", ylabel="share of silent groups", ylim=(0, 1), title=f"G = {group_size}")
    left.legend(frameon=False)
    sizes = np.arange(2, 33)
    right.plot(
        sizes,
        [float(starvation.beta_binomial_degeneracy(p * concentration, (1 - p) * concentration, int(g))) for g in sizes],
        color=COLORS[1],
    )
    right.plot(sizes, starvation.bernoulli_prediction(p, sizes), color=COLORS[0], linestyle="--")
    right.set(xlabel="group size G", ylim=(0, 1), title=f"p = {p:.2f}: larger groups are no way out")
    plt.show()


interact(
    silent_groups,
    p=FloatSlider(value=0.25, min=0.02, max=0.98, step=0.01),
    spread=FloatSlider(value=0.55, min=0.05, max=0.95, step=0.05),
    group_size=IntSlider(value=4, min=2, max=32),
)
# %% [markdown]
# The paper observes 0.69 at G = 4. A Beta(0.205, 0.615) law of difficulty, whose mean is 0.25, gives just that, where
# equal prompts would give 0.32.

# %%
print("prompts differ:", float(starvation.beta_binomial_degeneracy(0.205, 0.615, 4)))
print("equal prompts: ", float(starvation.bernoulli_prediction(0.25, 4)))

# %% [markdown]
# ## What the silent groups would say
#
# The mean update of a group is a multiple of the gradient of p. For Sign the part of all-wrong groups is
# `G (1 - p)^(G - 1)`, which is the gradient of pass@G: they push towards at least one right answer. A centred
# advantage has nothing there, but its mixed groups push as well. The signal-to-noise ratio on the right is exact, for a
# softmax over answers of which one is right.


# %%
def what_updates_hold(group_size: int = 4, answers: int = 10) -> None:
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    rates = np.linspace(0.005, 0.995, 100)
    split = starvation.expected_update(advantages.sign, rates, group_size)
    for part, color, style in (
        ("all_wrong", COLORS[1], "-"),
        ("mixed", COLORS[2], "--"),
        ("all_right", COLORS[3], ":"),
    ):
        left.plot(rates, getattr(split, part), color=color, linestyle=style, label=f"sign, {part}")
    left.plot(
        rates,
        starvation.expected_update(advantages.group_mean, rates, group_size).mixed,
        color=COLORS[0],
        label="group_mean, all",
    )
    left.set(xlabel="success rate p", ylabel="multiple of grad p", title=f"mean update, G = {group_size}")
    left.legend(frameon=False, fontsize="small")

    is_right = jnp.arange(answers) == 0

    def ratio(advantage, p: jax.Array) -> jax.Array:
        logits = jnp.where(is_right, jnp.log(p), jnp.log((1 - p) / (answers - 1)))
        return starvation.signal_to_noise(advantage, logits, is_right, group_size)

    for advantage, color, style in ((advantages.sign, COLORS[1], "-"), (advantages.group_mean, COLORS[0], "--")):
        curve = jax.vmap(lambda p, advantage=advantage: ratio(advantage, p))(jnp.asarray(rates))
        right.plot(rates, curve, color=color, linestyle=style, label=advantage.__name__)
    right.set(xlabel="success rate p", ylabel="signal to noise of one group", yscale="log", title=f"{answers} answers")
    right.legend(frameon=False)
    plt.show()


interact(what_updates_hold, group_size=IntSlider(value=4, min=2, max=16), answers=IntSlider(value=10, min=2, max=100))

# %% [markdown]
# ## Your own reward log
#
# `python -m experiments.starvation FILE` prints all of this for the rewards of any run, of any library: one line a
# group, with intervals.
