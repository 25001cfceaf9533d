"""Eight host devices, run-time type checks and a tiny model, for all tests."""

import atexit
import importlib.metadata
import os
import shutil
import tempfile

# Before jax is imported anywhere. Compiling is most of what tests spend; these make it five times faster. An XLA
# that does not know a flag aborts, so the second is set only where it was tried.
_FLAGS = ["--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS])
os.environ["JAX_PLATFORMS"] = "cpu"
# Programs that several tests or processes compile are compiled once a session; the first to come here, pytest itself
# before its workers, makes the folder and removes it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp()
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

from jaxtyping import install_import_hook

install_import_hook("rlvr_jax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

import dataclasses
import gc
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.command import run
from rlvr_jax.models import DeltaConfig, Model, ModelConfig, abstract_params, init_params, open_model
from rlvr_jax.objectives import OBJECTIVES
from rlvr_jax.records import Prompts
from rlvr_jax.sampling import Request, SamplingSettings, sample
from rlvr_jax.sharding import MeshShape, make_mesh
from rlvr_jax.training import make_batch

# What is imported stays, and traces make millions of objects that are no garbage: looking less often saves a twentieth.
gc.freeze()
gc.set_threshold(200_000, 20, 100)

LONGEST = ("test_hosts", "test_notebooks", "test_survival", "test_evaluation_folder", "test_run", "test_lora_training")
"""Files that take one or two minutes."""


def pytest_collection_modifyitems(items):
    """The longest first, or at the end one process would have one of them and the others nothing."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


TINY = ModelConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)
"""Two layers, grouped-query attention; every size differs from every other that it could be mixed up with."""

HYBRID = {
    "num_layers": 6,
    "query_key_norm": True,
    "partial_rotary_factor": 0.5,
    "zero_centred_norms": True,
    "output_gate": True,
    "tie_word_embeddings": False,
    "delta": DeltaConfig(block=3, key_heads=2, value_heads=4, key_dim=10, value_dim=6, taps=4),
}
"""What makes a Qwen3.5 of TINY: two blocks of two Gated DeltaNet layers and one of full attention."""

PREFIX = np.array([5, 17, 3], np.int32)


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """A file's programs are of no use to the next, and each process would keep gigabytes of them."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def params():
    """Random parameters, five times the usual deviation so that logits differ visibly."""
    return jax.tree.map(lambda x: 5 * x if x.ndim > 2 else x, init_params(TINY, seed=1))


def random_params(config, seed=0, deviation=0.1):
    """Every parameter random, norms and biases too, large enough that a wrong one is seen."""
    leaves, structure = jax.tree.flatten(abstract_params(config))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    values = [deviation * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]

    def positive(path, x):
        return 1.0 + x if path[-1].key == "scale" else x

    return jax.tree_util.tree_map_with_path(positive, jax.tree.unflatten(structure, values))


@pytest.fixture(scope="session")
def prompts():
    """Eight prompts of one to four tokens, right-padded."""
    generator = np.random.default_rng(0)
    mask = np.arange(4) < generator.integers(1, 5, (8, 1))
    tokens = np.where(mask, generator.integers(1, TINY.vocab_size, (8, 4)), 0)
    return Prompts(tokens.astype(np.int32), mask, np.arange(8, dtype=np.uint32))


@pytest.fixture(scope="session")
def one_device():
    return make_mesh(MeshShape(), jax.devices()[:1])


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Model:
    """A folder as Hugging Face would have it: random tiny Llama, digits-and-signs tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder, TINY)
    return open_model(str(folder))


def write_model(folder: Path, config: ModelConfig) -> None:
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from rlvr_jax.models.weights import hugging_face_tensors

    alphabet = ["<eos>", *"0123456789+-*=", "\u0120", "\u010a", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = {token: i for i, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    write_config(folder, config, eos_token_id=0)
    params = init_params(config, seed=1)
    save_file(
        dict(hugging_face_tensors(config, lambda name, layer: read(params, name, layer))), folder / "model.safetensors"
    )


def sampled_batch(params, prompts):
    """Four samples of each prompt under TINY, with random rewards and the Sign advantage, on the host."""
    stops = np.array([7, 11, 40], np.int32)
    request = Request(PREFIX, prompts, stops, jnp.uint32(0), jnp.int32(0), jnp.float32(1.0))
    rollouts = sample(params, request, settings=SamplingSettings(TINY, samples=4, max_new_tokens=6))
    rewards = jax.random.bernoulli(jax.random.key(3), 0.4, (8, 4)).astype(jnp.float32)
    return jax.device_get(make_batch(prompts, rollouts, rewards, None, None, objective=OBJECTIVES["sign"])[0])


def read(params, name: str, layer: int | None) -> np.ndarray:
    """A parameter by its dotted name, one layer of it where stacked."""
    for key in name.split("."):
        params = params[key]
    return np.array(params if layer is None else params[layer])


def write_config(folder: Path, config: ModelConfig, **more) -> None:
    fields = {
        "model_type": "llama",
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        **{
            name: getattr(config, name)
            for name in ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "rms_norm_eps", "rope_theta")
        },
        "tie_word_embeddings": config.tie_word_embeddings,
        **more,
    }
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.fixture(scope="session")
def untied(params):
    """(config, params) with a head of its own."""
    config = dataclasses.replace(TINY, tie_word_embeddings=False)
    head = init_params(config, seed=2)["head"]
    return config, {**params, "head": head * 5}


@pytest.fixture
def call(monkeypatch, capsys):
    """(exit status, standard output, standard error) of a command's module, called with arguments."""
    # Commands restart themselves for huge pages; within a test process they must not.
    monkeypatch.setenv("GLIBC_TUNABLES", "")

    def invoke(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run(module.main)
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return invoke


def relative(a, b):
    """Norm of the difference over the norm, over whole trees."""
    return float(optax.tree.norm(jax.tree.map(jnp.subtract, a, b)) / optax.tree.norm(b))
