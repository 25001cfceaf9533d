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
# # Sign against the group means, in minutes
#
# The starvation lab: a small Llama is taught to add until it is right as often as you ask for, then trained by
# reinforcement under several objectives and seeds, on the same questions with the same sampling noise. All runs of one
# shape are a single compiled function, `vmap`ped over seeds and objectives; held-out accuracy is exact, not sampled.

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
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console

from experiments.lab.arms import Lab, arm, run_arms
from experiments.lab.report import draw_band, success_rates, summarize, table

# %% [markdown]
# ## What is compared
#
# `2G / (G - 1)` is by how much Sign's mean update is longer than that of a centred group: the control that gives the
# group mean the same length of step. Change the base success rate, G, or the list, and run the cells again.

# %% tags=["settings"]
lab = Lab(samples=4, steps=150, evaluate_every=15, success_rate=0.2)
seeds = range(3)

# %%
arms = [
    arm(lab, "sign"),
    arm(lab, "group_mean"),
    arm(lab, "group_mean_std"),
    arm(lab, "group_mean", name="group_mean, step x 2G/(G-1)", scale=2 * lab.samples / (lab.samples - 1)),
]
traces = run_arms(lab, arms, seeds, [lab.base])
summary = summarize(lab, arms, traces, seeds)
Console(width=118).print(table(summary))

# %% [markdown]
# A difference between objectives counts when its interval over seeds leaves zero out. The last columns tell learning to
# finish and to write a number apart from learning to add.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
evaluated = np.array(summary["evaluated_at"])
for place, (each, trace) in enumerate(zip(arms, traces, strict=True)):
    draw_band(left, evaluated, success_rates(trace), each.name, place)
left.set(xlabel="step", ylabel="held-out accuracy")
left.legend(frameon=False, fontsize="small")
for place, (name, label) in enumerate((("degeneracy", "observed"), ("degeneracy_predicted", "equal prompts"))):
    stretches = traces[0].metrics[name].reshape(len(seeds), -1, lab.evaluate_every).mean(-1)
    draw_band(right, evaluated[1:], stretches, label, place)
right.set(xlabel="step", ylabel="silent groups under Sign", ylim=(0, 1))
right.legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# All controls and seven seeds: `python -m experiments.paper.sign_vs_group_mean --preset lab --seeds 7`; where Sign wins
# and where it does not, beside the exact theory: `python -m experiments.paper.phase_diagram`.
