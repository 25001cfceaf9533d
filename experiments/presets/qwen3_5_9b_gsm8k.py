"""The paper's experiment (arXiv 2605.07689): GSM8K with Qwen3.5-9B in groups of four, Sign against group-mean.

    python -m experiments.aot qwen3.5_9b_gsm8k --topology v5e:2x4       # does it fit, without one
    python -m experiments.train qwen3.5_9b_gsm8k --seed 43
    python -m experiments.compare qwen3.5_9b_gsm8k --objectives sign group_mean_std --seeds 42 43 44 45 46 47 48

Stated by the paper: model, task, G = 4, seven seeds, the whole test set. Assumed, as only the precursor of its code
has them: seeds 42 to 48, LoRA of rank 64 and alpha 128, rate 2e-5 with a warm-up of 10 steps, weight decay 0.01,
gradient norm 1, 200 steps of 4 prompts, a KL of 0.04 (k3), a loss summed over tokens, temperature 0.9, a cap of 256
new tokens, an answer after ####, greedy evaluation. Its dropout of 0.05 in the adapters is left out; the prompt is the
task's own.

The mesh is for eight chips of TPU v5e (`--mesh.fsdp 1 --mesh.tensor 1`: one GPU of 80 GB). It should score 0.738 under
Sign and 0.284 under group_mean_std, says the paper; how long it takes and what it scores here: not measured.
"""

from rlvr_jax.sharding import MeshShape
from rlvr_jax.training import TrainConfig

PRESET = TrainConfig(
    model="Qwen/Qwen3.5-9B",
    task="gsm8k",
    aggregation="sequence_sum",
    kl_coefficient=0.04,
    steps=200,
    prompts_per_step=4,
    samples_per_prompt=4,
    max_new_tokens=256,
    temperature=0.9,
    lora_rank=64,
    lora_alpha=128.0,
    learning_rate=2e-5,
    warmup_steps=10,
    weight_decay=0.01,
    compute_dtype="bfloat16",
    remat="full",
    seed=42,
    mesh=MeshShape(data=1, fsdp=4, tensor=2),
    evaluate_every=50,
    evaluation_questions=1319,
    evaluation_samples=1,
    evaluation_temperature=0.0,
    checkpoint_every=50,
)
