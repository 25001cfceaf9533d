"""LoRA (arXiv 2106.09685) as data: adapters are a pytree beside the parameters, and `adapted` joins the two.

Adapters have the structure of the parameters cut down to the adapted weights, with `{"a": [layers, rank, in],
"b": [layers, out, rank]}` in a weight's place. A weight W `[layers, out, in]` becomes W + alpha / rank * B A: a plain
parameter again, so that sampler and update run the same numbers and nothing in the decoder knows of adapters.

Cost, for N adapted parameters. Memory: while a gradient is computed, the joined weights and their gradient, N each
beside the base; optimizer state and checkpoints hold adapters only. Arithmetic: joining and its gradient are about
rank / tokens of a pass (tokens: of a micro-batch); the gradient of W is computed on the way to that of A and B, as in
a full fine-tune, where a separate low-rank product would save that third of the pass.

Not qwix: it finds weights as operands of NNX modules' products, which fails on weights stacked for a scan.
"""

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from rlvr_jax.errors import UserError
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Params, abstract_params, logical_axes
from rlvr_jax.models.export import new_folder
from rlvr_jax.models.weights import checkpoint_layout
from rlvr_jax.sharding import AnyMesh, named_sharding

_DEFAULT = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TARGETS = (*_DEFAULT, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
"""What can be adapted, by its name in a checkpoint; from `in_proj_qkv` on, in Gated DeltaNet layers (Qwen3.5) alone."""


@dataclasses.dataclass(frozen=True)
class LoraSettings:
    """Which weights have adapters and how large these are; hashable, so it is a static argument of jitted functions.

    Raises UserError for what does not fit.
    """

    rank: int = 64
    alpha: float = 128.0
    """The product B A counts alpha / rank."""
    targets: tuple[str, ...] = _DEFAULT

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"rank is {self.rank}, accepted is 1 or more")
        if not 0 < self.alpha < math.inf:
            raise UserError(f"alpha is {self.alpha}, accepted is a number above 0")
        unknown = [target for target in self.targets if target not in TARGETS]
        if unknown or not self.targets or len(set(self.targets)) < len(self.targets):
            raise UserError(f"targets are {self.targets}, accepted are one or more different ones of {TARGETS}")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def _adapted_modules(config: ModelConfig, settings: LoraSettings) -> dict[str, list[str]]:
    """By dotted name of each adapted parameter, its checkpoint modules in the order of the leading axis."""
    modules: dict[str, list[str]] = {}
    for tensor, place in checkpoint_layout(config).items():
        module, _, kind = tensor.rpartition(".")
        if kind == "weight" and module.split(".")[-1] in settings.targets:
            modules.setdefault(place.parameter, []).append(module)
    found = {module[0].split(".")[-1] for module in modules.values()}
    if missing := [target for target in settings.targets if target not in found]:
        raise UserError(f"targets has {missing[0]!r}, which this model does not have")
    return modules


def init_adapters(config: ModelConfig, settings: LoraSettings, seed: int) -> Params:
    """Float32 adapters that change nothing yet, as PEFT makes them: A uniform within 1 / sqrt(in), B zero."""
    shapes = flatten_dict(abstract_params(config), sep=".")
    adapters = {}
    for name, modules in _adapted_modules(config, settings).items():
        layers, out, width = shapes[name].shape
        # Addressed by target and kind of layer, so that a weight's A does not depend on what else is adapted.
        key = jax.random.fold_in(jax.random.key(seed), TARGETS.index(modules[0].split(".")[-1]))
        key = jax.random.fold_in(key, ("layers", "delta_layers").index(name.partition(".")[0]))
        a = jax.random.uniform(key, (layers, settings.rank, width), minval=-1.0, maxval=1.0) * width**-0.5
        adapters[name] = {"a": a, "b": jnp.zeros((layers, out, settings.rank))}
    return unflatten_dict(adapters, sep=".")


def abstract_adapters(config: ModelConfig, settings: LoraSettings) -> Params:
    """Shape and dtype of every adapter."""
    return jax.eval_shape(lambda: init_adapters(config, settings, 0))


def adapter_shardings(config: ModelConfig, settings: LoraSettings, mesh: AnyMesh) -> Params:
    """The sharding of every adapter: `in` and `out` as the weight's, the rank on every device."""
    axes = flatten_dict(logical_axes(config), sep=".")
    shardings = {}
    for name in _adapted_modules(config, settings):
        layers, out, width = axes[name]
        shardings[name] = {
            "a": named_sharding(mesh, (layers, None, width)),
            "b": named_sharding(mesh, (layers, out, None)),
        }
    return unflatten_dict(shardings, sep=".")


def adapted(params: Params, adapters: Params, settings: LoraSettings, dtype: str | jnp.dtype | None = None) -> Params:
    """Parameters of the policy: W + alpha / rank * B A where there is an adapter, in W's type, and W itself elsewhere.

    To train adapters, differentiate with respect to them alone. A `dtype` other than W's, that of computing, spares
    memory and changes nothing that is computed in it.
    """
    flat = flatten_dict(params)
    of_adapters = flatten_dict(adapters)
    for path in dict.fromkeys(path[:-1] for path in of_adapters):
        weight, (a, b) = flat[path], (of_adapters[*path, factor] for factor in ("a", "b"))
        flat[path] = _joined(weight, a, b, settings.scale, jnp.dtype(dtype or weight.dtype))
    return unflatten_dict(flat)


@functools.partial(jax.jit, static_argnames=("scale", "dtype"))
def _joined(
    weight: Float[Array, "layers out in"],
    a: Float[Array, "layers rank in"],
    b: Float[Array, "layers out rank"],
    scale: float,
    dtype: jnp.dtype,
) -> Float[Array, "layers out in"]:
    return (weight + scale * jnp.einsum("lor,lri->loi", b, a)).astype(dtype)


def save_adapters(folder: Path, adapters: PyTree, config: ModelConfig, settings: LoraSettings, base: str) -> None:
    """Writes a folder that PEFT reads (`PeftModel.from_pretrained`); `base` names the model that is adapted.

    The folder appears whole or not at all. Raises UserError when it is there and not empty.
    """
    from safetensors.numpy import save_file

    flat = flatten_dict(jax.device_get(adapters), sep=".")
    tensors = {
        _peft_name(module, factor): np.ascontiguousarray(matrix)
        for name, modules in _adapted_modules(config, settings).items()
        for factor in ("a", "b")
        for module, matrix in zip(modules, flat[f"{name}.{factor}"], strict=True)
    }
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(settings.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
    }
    with new_folder(folder) as scratch:
        save_file(tensors, scratch / "adapter_model.safetensors", metadata={"format": "pt"})
        (scratch / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n")
        # safetensors lets only their owner read its files, where a server may be another user.
        (scratch / "adapter_model.safetensors").chmod((scratch / "adapter_config.json").stat().st_mode)


def _peft_name(module: str, factor: str) -> str:
    return f"base_model.model.{module}.lora_{factor.upper()}.weight"


# What would change the meaning of the tensors; anything else that PEFT can do shows in their names and shapes.
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    # The others (pissa, olora, corda, ...) take something out of the base weights.
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_rslora": (False,),
    "use_dora": (False,),
    "use_qalora": (False,),
    "use_bdlora": (None,),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "alora_invocation_tokens": (None,),
    "monteclora_config": (None,),
    "kasa_config": (None,),
    "velora_config": (None,),
}


def load_adapters(folder: Path, config: ModelConfig, mesh: Mesh) -> tuple[Params, LoraSettings]:
    """Float32 adapters from a folder as PEFT writes it, placed on the mesh, and their settings.

    Raises UserError that names the field that is not supported, or the tensor (and both shapes) that is missing,
    unexpected or mis-shaped.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is missing")
    settings = _read_settings(folder / "adapter_config.json")
    file = folder / "adapter_model.safetensors"
    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise UserError(f"{file} is not a whole safetensors file ({error})") from error
    if config.delta:  # adapters of the whole multimodal model call its text decoder so
        tensors = {name.replace(".language_model.", ".", 1): tensor for name, tensor in tensors.items()}

    def take(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in tensors:
            raise UserError(f"{file}: tensor {name} of shape {shape} is missing")
        tensor = tensors.pop(name)
        if tensor.shape != shape:
            raise UserError(f"{file}: tensor {name} has shape {tensor.shape}, model and rank ask for {shape}")
        return tensor.astype(np.float32)

    shapes = flatten_dict(abstract_adapters(config, settings), sep=".")
    arrays = {
        f"{name}.{factor}": np.stack(
            [take(_peft_name(module, factor), shapes[f"{name}.{factor}"].shape[1:]) for module in modules]
        )
        for name, modules in _adapted_modules(config, settings).items()
        for factor in ("a", "b")
    }
    if tensors:
        raise UserError(f"{file}: unexpected tensor {min(tensors)} (and {len(tensors) - 1} more)")
    adapters = unflatten_dict(arrays, sep=".")
    return jax.device_put(adapters, adapter_shardings(config, settings, mesh)), settings


def _read_settings(file: Path) -> LoraSettings:
    try:
        fields = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{file} is not JSON ({error})") from error
    for name, accepted in _ACCEPTED.items():
        value = fields.get(name, accepted[0])
        if value not in accepted:
            raise UserError(f"{file}: {name} is {value!r}, accepted is {' or '.join(map(repr, accepted))}")
    targets = fields.get("target_modules")
    if not isinstance(targets, list):
        raise UserError(f"{file}: target_modules is {targets!r}, accepted is a list of names in {TARGETS}")
    for name, kind, accepted in (("r", int, "a whole number"), ("lora_alpha", int | float, "a number")):
        if not isinstance(fields.get(name), kind):
            raise UserError(f"{file}: {name} is {fields.get(name)!r}, accepted is {accepted}")
    # PEFT writes a set, in any order: ours has the order of TARGETS, and what is unknown after it.
    short = {target.split(".")[-1] for target in targets}
    ordered = (*(target for target in TARGETS if target in short), *sorted(short - set(TARGETS)))
    try:
        return LoraSettings(fields["r"], float(fields["lora_alpha"]), ordered)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
