"""The Llama port: config and weights in, a pure forward pass over parameters."""

from rlvr_jax.models.config import ModelConfig, RopeScaling, config_from_hugging_face
from rlvr_jax.models.decoder import abstract_params, decoder, init_params, logical_axes
from rlvr_jax.models.loading import Model, open_model
from rlvr_jax.models.tree import token_log_probabilities
from rlvr_jax.models.weights import load_params, param_shardings

__all__ = [
    "Model",
    "ModelConfig",
    "RopeScaling",
    "abstract_params",
    "config_from_hugging_face",
    "decoder",
    "init_params",
    "load_params",
    "logical_axes",
    "open_model",
    "param_shardings",
    "token_log_probabilities",
]
