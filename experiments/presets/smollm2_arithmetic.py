"""SmolLM2-135M learns arithmetic on a laptop: the paper's regime without an accelerator.

    python -m experiments.train smollm2_arithmetic

Two CPU cores: about 4 minutes and 4 GB for 40 steps of 8 prompts x 4 samples. Held-out accuracy at
temperature 1 goes from 0.25 to about 0.5. The learning rate matters: 3e-5 already hurts, 1e-4 collapses.
"""

from rlvr_jax.training import TrainConfig

PRESET = TrainConfig()
