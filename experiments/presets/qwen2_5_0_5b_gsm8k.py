"""GSM8K with Qwen2.5-0.5B-Instruct, all weights trained, on one small accelerator.

    python -m experiments.aot qwen2.5_0.5b_gsm8k --topology v5e:1x1     # does it fit, without one
    python -m experiments.train qwen2.5_0.5b_gsm8k

8 prompts x 8 samples of at most 512 tokens a step, 200 steps, bfloat16 with float32 weights. For one chip of TPU v5e
(16 GB) or a GPU of that size; how long it takes and what it scores: not measured. The rate is ours, not tuned.
"""

from rlvr_jax.training import TrainConfig

PRESET = TrainConfig(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    task="gsm8k",
    steps=200,
    prompts_per_step=8,
    samples_per_prompt=8,
    max_new_tokens=512,
    micro_batches=4,
    learning_rate=1e-6,
    warmup_steps=10,
    compute_dtype="bfloat16",
    remat="full",
    evaluate_every=50,
    evaluation_questions=1319,
    evaluation_samples=1,
    evaluation_temperature=0.0,
    checkpoint_every=50,
)
