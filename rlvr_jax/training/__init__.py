"""The train state, the sharded update, checkpoints, and the loop that joins them."""

from rlvr_jax.training.batch import make_batch
from rlvr_jax.training.checkpoint import Checkpoints
from rlvr_jax.training.config import TrainConfig
from rlvr_jax.training.optimizer import make_optimizer
from rlvr_jax.training.replay import replay
from rlvr_jax.training.restore import read_config, restore_policy, restore_trained, run_config
from rlvr_jax.training.run import RunResult, read_result, train
from rlvr_jax.training.setup import Setup, prepare
from rlvr_jax.training.state import TrainState, init_state, policy_params
from rlvr_jax.training.update import UpdateSettings, loss_and_gradients, update

__all__ = [
    "Checkpoints",
    "RunResult",
    "Setup",
    "TrainConfig",
    "TrainState",
    "UpdateSettings",
    "init_state",
    "loss_and_gradients",
    "make_batch",
    "make_optimizer",
    "policy_params",
    "prepare",
    "read_config",
    "read_result",
    "replay",
    "restore_policy",
    "restore_trained",
    "run_config",
    "train",
    "update",
]
