"""A model by name: hub id, local folder, `.gguf` file, or `embedded:NAME`."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from rlvr_jax.errors import UserError
from rlvr_jax.models.config import ModelConfig, config_from_hugging_face, text_fields
from rlvr_jax.models.embedded import embedded_gguf
from rlvr_jax.models.gguf import convert_gguf
from rlvr_jax.models.published import PUBLISHED

_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model"]


@dataclasses.dataclass(frozen=True)
class Model:
    """Everything about a model but its weights, which `weights.load_params(model.folder, ...)` reads."""

    name: str
    folder: Path
    config: ModelConfig
    tokenizer: Any
    """A transformers tokenizer (fast)."""
    eos_token_ids: tuple[int, ...]
    """All tokens that end a turn; Llama 3 has more than one."""


def open_model(name: str) -> Model:
    """Finds a model and reads its config and tokenizer. Raises UserError when it is not found or not supported."""
    folder = _folder(name)
    fields = _read_json(folder / "config.json")
    config = config_from_hugging_face(fields)
    tokenizer = _tokenizer(folder)
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.is_file() else None
    if eos is None:
        eos = text_fields(fields).get("eos_token_id")
    if eos is None:
        eos = tokenizer.eos_token_id
    if eos is None:
        raise UserError(f"{name}: no eos_token_id in generation_config.json, config.json or the tokenizer")
    return Model(name, folder, config, tokenizer, tuple(eos) if isinstance(eos, list) else (eos,))


def open_config(name: str) -> ModelConfig:
    """What a model is, without weights or tokenizer at hand: for a hub id its published fields, or `config.json` alone.

    Raises UserError as `open_model`.
    """
    if name in PUBLISHED:
        return config_from_hugging_face(PUBLISHED[name])
    if is_hub_id(name):
        return config_from_hugging_face(_read_json(_download_config(name)))
    return config_from_hugging_face(_read_json(_folder(name) / "config.json"))


def is_hub_id(name: str) -> bool:
    """Whether a model is on a hub, and not a file, a folder or embedded."""
    is_local = name.startswith(("embedded:", ".", "/", "~")) or name.endswith(".gguf") or Path(name).is_dir()
    return not is_local and name.count("/") == 1


def _download_config(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json"))
    # As in _download: all of its errors mean "not to be had".
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"config.json of model {name!r} could not be fetched from the hub ({reason}); accepted are also a local "
            f"folder with one, and {', '.join(PUBLISHED)}"
        ) from error


def _folder(name: str) -> Path:
    if name.startswith("embedded:"):
        return convert_gguf(embedded_gguf(name.removeprefix("embedded:")))
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"model is {name!r}: no such file")
        return convert_gguf(path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"model is {name!r}: the folder has no config.json")
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(
            f"model is {name!r}: no such file or folder; "
            "accepted are a hub id (owner/name), a folder, a .gguf file, embedded:NAME"
        )
    return _download(name)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    # The hub's client raises errors of several libraries (its own, HTTP, socket): all mean "not to be had".
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model {name!r} could not be fetched from the hub ({reason}); "
            "accepted is also a local folder with config.json and safetensors"
        ) from error


def _tokenizer(folder: Path) -> Any:
    # Without PyTorch the library would advise to install it; here it only tokenises.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: no usable tokenizer ({str(error).splitlines()[0]})") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{file} is not JSON ({error})") from error
