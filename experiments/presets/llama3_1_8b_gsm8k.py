"""GSM8K with Llama-3.1-8B-Instruct, all weights trained, on a slice of sixteen chips or more.

    python -m experiments.aot llama3.1_8b_gsm8k --topology v5e:4x4      # does it fit, without one
    python -m experiments.train llama3.1_8b_gsm8k

16 prompts x 4 samples of at most 1,024 tokens a step, 200 steps, bfloat16 with float32 weights, which lie split over
all chips. For TPU v5e-16, v6e-16 or their like; how long it takes and what it scores: not measured. The rate is ours,
not tuned.
"""

from rlvr_jax.sharding import MeshShape
from rlvr_jax.training import TrainConfig

PRESET = TrainConfig(
    model="meta-llama/Llama-3.1-8B-Instruct",
    task="gsm8k",
    steps=200,
    prompts_per_step=16,
    samples_per_prompt=4,
    max_new_tokens=1024,
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
