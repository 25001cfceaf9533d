"""The Llama and Qwen port: config and weights in, a pure forward pass over parameters."""

from rlvr_jax.models.config import DeltaConfig, ModelConfig, RopeScaling, config_from_hugging_face
from rlvr_jax.models.decoder import Remat, abstract_params, decoder, init_params, logical_axes
from rlvr_jax.models.export import export_model
from rlvr_jax.models.loading import Model, is_hub_id, open_config, open_model
from rlvr_jax.models.lora import LoraSettings, adapted, init_adapters, load_adapters, save_adapters
from rlvr_jax.models.tree import logits, token_log_probabilities
from rlvr_jax.models.weights import load_params, param_shardings

__all__ = [
    "DeltaConfig",
    "LoraSettings",
    "Model",
    "ModelConfig",
    "Remat",
    "RopeScaling",
    "abstract_params",
    "adapted",
    "config_from_hugging_face",
    "decoder",
    "export_model",
    "init_adapters",
    "init_params",
    "is_hub_id",
    "load_adapters",
    "load_params",
    "logical_axes",
    "logits",
    "open_config",
    "open_model",
    "param_shardings",
    "save_adapters",
    "token_log_probabilities",
]
