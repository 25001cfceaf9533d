"""GGUF files of each family beside transformers' own reading of them, the tokenizer, and what is refused by name."""

import json

import gguf
import jax
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from tokenizers import Tokenizer

from experiments.check_port import compare_logits
from rlvr_jax.errors import UserError
from rlvr_jax.models import config_from_hugging_face, load_params, logits, open_model
from rlvr_jax.models.gguf import _TYPES

LAYERS, HIDDEN, HEADS, KV_HEADS, EPS, THETA = 2, 256, 4, 2, 1e-6, 1e6
VOCABULARY = 400
"""More than the tokenizer has: the rest is padding, as in Qwen's own checkpoints."""

CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
# transformers reads no head size for Qwen 3, and takes that of all published ones.
HEAD_DIMS = {"llama": 64, "qwen2": 64, "qwen3": 128}

TEXTS = [
    "It's what they'll say: we've 1234 apples, I'd eat 5; a'sober b'tis c'REAL d'vein e'milk f'llama g'dear",
    "Es war einmal ein Ko\u0308nig, der hatte; def f(x):\n\n    return x  +\t1\r\n",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \U0001f600 mixed, [PAD399] and  two spaces ",
    "<|im_start|>user\n<think>it's</think> <tool><|im_end|>",
]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RLVR_JAX_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tokenizer():
    """transformers' own Qwen tokenizer, with a vocabulary learnt from the texts."""
    learnt = transformers.Qwen2Tokenizer().train_new_from_iterator(TEXTS * 3, 330)
    learnt.add_tokens([transformers.AddedToken(f"<|im_{name}|>", special=True) for name in ("start", "end")])
    learnt.add_tokens([transformers.AddedToken(token, normalized=False) for token in ("<think>", "</think>")])
    return learnt


@pytest.fixture
def write(tokenizer, tmp_path):
    """Writes a random model of a family; returns the file and the model in transformers.

    `change` may alter the fields (by their full names) and tensors before they are written.
    """

    def write(family, quantised=None, *, tied=True, head_dim=None, change=lambda fields, tensors: None):
        head_dim = head_dim or HEAD_DIMS[family]
        model = random_model(family, tied, head_dim)
        fields, tensors = gguf_fields(family, head_dim, tokenizer), gguf_tensors(family, head_dim, model)
        change(fields, tensors)
        file = tmp_path / f"{family}.gguf"
        writer = gguf.GGUFWriter(file, family)
        for name, value in fields.items():
            kind = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            kind.get(type(value), writer.add_array)(name, value)
        for name, values in tensors.items():
            if quantised is None or values.ndim == 1:
                writer.add_tensor(name, values)
            else:
                writer.add_tensor(name, quantise(values, quantised), raw_dtype=quantised)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file, model

    return write


def random_model(family, tied, head_dim):
    """Every parameter random, norms and biases too."""
    config_class, model_class = CLASSES[family]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=head_dim,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(std=0.1).add_(1.0 if "norm" in name else 0.0)
    return model


def gguf_tensors(family, head_dim, model):
    """By the names that the gguf package has for them."""
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), LAYERS)
    tensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = weight.numpy()
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            # Rows i and i + half of each head side by side, as llama.cpp turns Llama's.
            first, second = np.split(values.reshape(-1, head_dim, HIDDEN), 2, 1)
            values = np.stack([first, second], 2).reshape(values.shape)
        stem, _, suffix = name.rpartition(".")
        tensors[f"{names.get_name(stem)}.{suffix}"] = values
    return tensors


def gguf_fields(family, head_dim, tokenizer):
    types = {token.content: 3 if token.special else 4 for token in tokenizer.added_tokens_decoder.values()}
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    return {
        f"{family}.context_length": 64,
        f"{family}.embedding_length": HIDDEN,
        f"{family}.block_count": LAYERS,
        f"{family}.feed_forward_length": 2 * HIDDEN,
        f"{family}.attention.head_count": HEADS,
        f"{family}.attention.head_count_kv": KV_HEADS,
        f"{family}.attention.layer_norm_rms_epsilon": EPS,
        f"{family}.attention.key_length": head_dim,
        f"{family}.attention.value_length": head_dim,
        f"{family}.rope.freq_base": THETA,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens + [f"[PAD{i}]" for i in range(len(tokens), VOCABULARY)],
        "tokenizer.ggml.token_type": [types.get(token, 1) for token in tokens] + [5] * (VOCABULARY - len(tokens)),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
    }


def quantise(values, kind):
    if kind is not Type.Q6_K:
        return gguf.quantize(values, kind)
    # No writer of this kind in Python: any bytes are weights, but for the scale, the last two of each block of 256.
    blocks = np.random.default_rng(values.size).integers(0, 256, (len(values), values.shape[1] // 256, 210), np.uint8)
    blocks[..., 208:] = np.array([2.0**-15], np.float16).view(np.uint8)
    return blocks.reshape(len(values), -1)


def tokens():
    return np.random.default_rng(0).integers(0, VOCABULARY, (1, 24)).astype(np.int32)


def theirs(model):
    with torch.no_grad():
        return model(torch.tensor(tokens(), dtype=torch.long)).logits[0].numpy()


def ours(model, mesh):
    params = load_params(model.folder, model.config, mesh)
    return np.asarray(jax.jit(lambda params: logits(params, tokens(), config=model.config))(params))[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("family", "quantised"),
    [
        ("llama", None),
        ("llama", Type.Q4_1),
        ("qwen2", None),
        ("qwen2", Type.BF16),
        ("qwen2", Type.Q8_0),
        ("qwen3", None),
        ("qwen3", Type.Q8_0),
        ("qwen3", Type.Q6_K),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_logits_of_transformers_own_reading(family, quantised, write, one_device):
    file, original = write(family, quantised, tied=quantised is not Type.Q8_0)
    model = open_model(str(file))
    got = ours(model, one_device)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    figures = compare_logits(got, theirs(reference))
    assert figures["relative_difference"] <= 2e-5
    assert figures["kl"] <= 1e-9
    if quantised is None:
        assert model.config == config_from_hugging_face(original.config.to_dict())
        assert compare_logits(got, theirs(original))["relative_difference"] <= 2e-5
    else:
        assert compare_logits(got, theirs(original))["relative_difference"] > 1e-3


def test_a_head_size_of_its_own(write, one_device):
    """Qwen 3's need not be the hidden size over the number of heads."""
    file, original = write("qwen3", head_dim=32)
    model = open_model(str(file))
    assert model.config == config_from_hugging_face(original.config.to_dict())
    assert compare_logits(ours(model, one_device), theirs(original))["relative_difference"] <= 2e-5


def test_the_tokenizer_is_qwens(write, tokenizer):
    def add_template(fields, _):
        fields["tokenizer.chat_template"] = "{{ messages[0].content }}!"
        fields["tokenizer.ggml.eot_token_id"] = tokenizer.convert_tokens_to_ids("</think>")

    model = open_model(str(write("qwen2", change=add_template)[0]))
    # By itself as well: transformers may put its own class of the family in its place.
    written = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    pieces, expected = (x.pre_tokenizer.pre_tokenize_str for x in (written, tokenizer.backend_tokenizer))
    for text in TEXTS:
        assert pieces(text) == expected(text)
        encoded = tokenizer.encode(text)
        assert written.encode(text).ids == encoded
        assert model.tokenizer.encode(text) == encoded
        for skip in (False, True):
            settings = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": False}
            assert model.tokenizer.decode(encoded, **settings) == tokenizer.decode(encoded, **settings)
    assert "<think>" in model.tokenizer.decode(model.tokenizer.encode(TEXTS[-1]), skip_special_tokens=True)
    assert model.tokenizer.pad_token == "<|endoftext|>"
    assert model.eos_token_ids == tuple(tokenizer.convert_tokens_to_ids(["<|im_end|>", "</think>", "<|endoftext|>"]))
    assert model.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


def of_fields(**changes):
    """A change of fields: `__` stands for a dot, None takes a field out."""

    def change(fields, _):
        fields.update({name.replace("__", "."): value for name, value in changes.items()})
        for name in [name for name, value in fields.items() if value is None]:
            del fields[name]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            of_fields(qwen2__rope__scaling__type="yarn"),
            r"qwen2\.rope\.scaling\.type is 'yarn', this reader accepts 'none'",
        ),
        (of_fields(qwen2__rope__scaling__factor=4.0), r"qwen2\.rope\.scaling\.factor is 4\.0, .* files without it"),
        (of_fields(qwen2__rope__dimension_count=32), r"qwen2\.rope\.dimension_count is 32, this reader accepts 64"),
        (of_fields(qwen2__attention__value_length=32), r"qwen2\.attention\.value_length is 32, this reader accepts 64"),
        (of_fields(qwen2__attention__sliding_window=8), r"qwen2\.attention\.sliding_window is 8"),
        (of_fields(qwen2__pooling_type=3), r"qwen2\.pooling_type is 3"),
        (of_fields(qwen2__vocab_size=401), r"qwen2\.vocab_size is 401, this reader accepts 400"),
        (of_fields(qwen2__attention__head_count_kv=[2, 1]), r"head_count_kv is \[2, 1\], accepted is one number"),
        (of_fields(qwen2__context_length=None), r"qwen2\.context_length is missing"),
        (of_fields(split__count=2), r"split\.count is 2, this reader accepts a single file"),
        (of_fields(tokenizer__ggml__pre="llama-bpe"), r"tokenizer is \('gpt2', 'llama-bpe'\), this reader accepts"),
        (of_fields(tokenizer__ggml__add_bos_token=True), r"tokenizer\.ggml\.add_bos_token is True"),
        (of_fields(tokenizer__ggml__merges=None), r"tokenizer\.ggml\.merges is missing"),
        (lambda _, t: t.pop("blk.1.attn_k.bias"), r"tensor blk\.1\.attn_k\.bias is missing"),
        (
            lambda _, t: t.update({"rope_freqs.weight": np.ones(32, np.float32)}),
            r"tensor rope_freqs\.weight is not supported \(and 0 more\)",
        ),
        (
            lambda _, t: t.update({"output_norm.weight": np.ones(255, np.float32)}),
            r"output_norm\.weight has shape \(255,\), the file's own fields ask for \(256,\)",
        ),
        (
            lambda _, t: t.update({"output_norm.weight": np.ones(256, np.float64)}),
            r"output_norm\.weight is of type F64, accepted are F32, F16, BF16, Q4_0",
        ),
    ],
)
def test_what_is_not_supported_is_named(write, change, message, tmp_path):
    file, _ = write("qwen2", change=change)
    with pytest.raises(UserError, match=message):
        open_model(str(file))
    assert not list((tmp_path / "cache" / "converted").iterdir()), "nothing half converted"


def test_every_accepted_type_can_be_dequantised():
    for name in _TYPES:
        kind = gguf.GGMLQuantizationType[name]
        weights, of_bytes = gguf.GGML_QUANT_SIZES[kind]
        raw = np.zeros((2, of_bytes), np.uint8)
        stored = raw.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))
        assert gguf.dequantize(stored, kind).shape == (2, weights), name


def test_another_architecture_and_a_part_of_a_file(write, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UserError, match="architecture is 'gemma3', this port accepts 'llama' or 'qwen2' or 'qwen3'"):
        open_model(str(tmp_path / "other.gguf"))
    file, _ = write("qwen3")
    whole = file.read_bytes()
    for size in (4, 400, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(UserError, match="is not a whole GGUF file"):
            open_model(str(file))
