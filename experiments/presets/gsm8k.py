"""GSM8K with any model of the Llama family.

    python -m experiments.train gsm8k --model OWNER/NAME
    python -m experiments.train gsm8k --model FOLDER --data FOLDER_WITH_TRAIN_AND_TEST_JSONL

G = 4 samples, 4 prompts a step, 200 steps and a cap of 256 new tokens, as in the precursor of the paper's runs
(unconfirmed for the paper itself); a full fine-tune instead of LoRA, hence the smaller learning rate, which is ours.
Evaluates greedily on the first 64 test questions (`--evaluation-questions 1319`: all). Meant for an accelerator:
on two CPU cores the 135M model needs about 4 minutes for an evaluation and 3 for a step. What it scores depends on the
model; not yet measured beyond a few steps.
"""

from rlvr_jax.training import TrainConfig

PRESET = TrainConfig(
    task="gsm8k",
    steps=200,
    prompts_per_step=4,
    samples_per_prompt=4,
    learning_rate=1e-6,
    remat="full",
    evaluate_every=50,
    evaluation_questions=64,
    evaluation_samples=1,
    evaluation_temperature=0.0,
    evaluation_batch=64,
    checkpoint_every=50,
)
