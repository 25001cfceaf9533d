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
# # GSM8K on one TPU chip: load, prompt, train, evaluate, save, export
#
# Qwen2.5-0.5B on the TPU chip of a Colab runtime. `python -m experiments.aot qwen2.5_0.5b_gsm8k --topology v5e:1x1`
# tells that the settings below fit its memory. What it scores was not measured by us.

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
from pathlib import Path

import jax
import matplotlib.pyplot as plt

from experiments.presets import PRESETS
from rlvr_jax.models import export_model
from rlvr_jax.training import prepare, train
from rlvr_jax.training.restore import restore_policy

print(jax.devices())

# %% [markdown]
# ## Settings
#
# All that a run is, in one frozen dataclass. `task="gsm8k"` reads the questions from the hub; `model` takes a hub id, a
# local folder, a GGUF file or `embedded:smollm2-135m-instruct`, which needs no hub.

# %% tags=["settings"]
config = dataclasses.replace(
    PRESETS["qwen2.5_0.5b_gsm8k"], steps=50, evaluate_every=25, evaluation_questions=128, output=Path("runs/gsm8k")
)

# %% [markdown]
# ## Exactly what the model sees

# %%
setup = prepare(config)
task, tokenizer = setup.roller.task, setup.model.tokenizer
print("".join(task.prompt(task.row("train", 0), tokenizer)))

# %% [markdown]
# ## Train
#
# Killed or cut off? Run the cell again with `resume=True`: it goes on from the latest checkpoint, to the same bits.

# %%
result = train(config, setup, resume=config.folder.is_dir())

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
steps = [line["step"] for line in result.metrics]
left.plot(steps, [line["reward"] for line in result.metrics], color="#0072B2", label="reward in training")
evaluated = sorted(result.evaluations)
means = [result.evaluations[step].accuracy for step in evaluated]
left.errorbar(
    evaluated,
    [mean for mean, _, _ in means],
    yerr=[[mean - low for mean, low, _ in means], [high - mean for mean, _, high in means]],
    color="#D55E00",
    linestyle="--",
    capsize=3,
    label="held-out accuracy",
)
left.set(xlabel="step", ylim=(0, 1))
left.legend(frameon=False)
for name, color, style in (("degeneracy", "#D55E00", "-"), ("degeneracy_predicted", "#0072B2", "--")):
    right.plot(steps, [line[name] for line in result.metrics], color=color, linestyle=style, label=name)
right.set(xlabel="step", ylabel="share of groups", ylim=(0, 1))
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Export
#
# A folder that transformers and vLLM read.

# %%
params, step = restore_policy(result.folder, setup.model, setup.mesh)
export_model(setup.model, params, Path("exported"))
print(step, sorted(path.name for path in Path("exported").iterdir()))
