"""GSM8K with Qwen3-1.7B without thinking, all weights trained, on a host of four or eight chips.

    python -m experiments.aot qwen3_1.7b_gsm8k --topology v5e:2x4       # does it fit, without one
    python -m experiments.train qwen3_1.7b_gsm8k

8 prompts x 8 samples of at most 512 tokens a step, 200 steps, bfloat16 with float32 weights, which lie split over all
chips. For TPU v5e-4, v5e-8, v6e-4 or their like; how long it takes and what it scores: not measured. The rate is ours,
not tuned.
"""

from rlvr_jax.sharding import MeshShape
from rlvr_jax.training import TrainConfig

PRESET = TrainConfig(
    model="Qwen/Qwen3-1.7B",
    task="gsm8k",
    steps=200,
    prompts_per_step=8,
    samples_per_prompt=8,
    max_new_tokens=512,
    learning_rate=1e-6,
    warmup_steps=10,
    compute_dtype="bfloat16",
    remat="full",
    mesh=MeshShape(data=1, fsdp=-1),
    evaluate_every=50,
    evaluation_questions=1319,
    evaluation_samples=1,
    evaluation_temperature=0.0,
    checkpoint_every=50,
)
