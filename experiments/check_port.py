"""Is the port right? Its logits beside those that transformers computes from the same files.

python -m experiments.check_port embedded:smollm2-135m-instruct
python -m experiments.check_port OWNER/NAME --prompts prompts.txt

Both run on the CPU, transformers in float32 with its plain ("eager") attention. A .gguf file is read by transformers'
own reader, so that the conversion is checked as well. Takes twice the model's float32 size in memory, and about a
minute for 135 million parameters. SmolLM2 is within a KL of 1e-9 and a relative difference of 1e-5.
"""

import dataclasses
import functools
import importlib.util
import itertools
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import rich.box
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.command import parse, print_json, run
from rlvr_jax.errors import UserError
from rlvr_jax.models import Model, load_params, logits, open_model
from rlvr_jax.models.embedded import embedded_gguf
from rlvr_jax.sharding import MeshShape, make_mesh

PROMPTS = (
    "82 + 18 = 100\n7 - 1 = 6\n93 - 70 = 23\n36 - 22 = 14\n36 * 4 =",
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "Es war einmal ein K\u00f6nig, der hatte",
    "Question: Natalia sold 48 clips in April and half as many in May. How many in all?\nAnswer:",
    "    leading   spaces\tand\ttabs",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \U0001f600 mixed",
    "She sells sea shells " * 12,
)


@dataclasses.dataclass(frozen=True)
class CheckPort:
    """Compare the port with transformers."""

    model: Annotated[str, tyro.conf.Positional]
    """Hub id, local folder, .gguf file, or embedded:NAME."""
    prompts: Path | None = None
    """A text file with one prompt a line; default: a few built-in ones."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the port computes in. bfloat16 needs wider bounds."""
    kl_bound: float = 1e-6
    """Largest mean KL(transformers || port) of a prompt, in nats per token."""
    logit_bound: float = 2e-5
    """Largest difference of two logits of a prompt, relative to its largest logit."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def reference_model(model: Model) -> Any:
    """The same files in transformers, float32. Raises UserError when that cannot be had without torch."""
    gguf = original_gguf(model)
    for package in ("torch", "accelerate") if gguf else ("torch",):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"check_port compares with transformers, which needs {package}: pip install {package}")
    import torch
    from transformers import AutoModelForCausalLM

    settings = {"dtype": torch.float32, "attn_implementation": "eager"}
    if gguf is None:
        return AutoModelForCausalLM.from_pretrained(model.folder, **settings).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its reader, about NumPy
        return AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, **settings).eval()


def original_gguf(model: Model) -> Path | None:
    """The file that the model's folder was converted from, if any."""
    if model.name.startswith("embedded:"):
        return embedded_gguf(model.name.removeprefix("embedded:"))
    file = Path(model.name).expanduser()
    return file if file.suffix == ".gguf" else None


def read_prompts(file: Path) -> list[str]:
    """One prompt a line, empty lines left out. Raises UserError when there is no such text."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompts is {str(file)!r}: not a readable text file in UTF-8 ({error})") from error
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise UserError(f"prompts is {str(file)!r}: the file has no prompts, accepted is one a line")
    return prompts


def compare_logits(ours: np.ndarray, theirs: np.ndarray, top: int = 10) -> dict[str, float]:
    """Figures of one prompt from the logits `[tokens, vocab]` of both.

    The KL divergence KL(theirs || ours), the overlap of the `top` most likely tokens and the agreement on the most
    likely one are means over tokens.
    """
    top = min(top, theirs.shape[-1])
    divergences, overlaps = [], []
    # Token by token: in double precision all at once would be large for a long prompt.
    for own, reference in zip(ours, theirs, strict=True):
        own_log, reference_log = _log_probabilities(own), _log_probabilities(reference)
        divergences.append(np.sum(np.exp(reference_log) * (reference_log - own_log)))
        likely = (np.argpartition(row, -top)[-top:] for row in (own, reference))
        overlaps.append(len(np.intersect1d(*likely)) / top)
    difference = float(np.abs(ours - theirs).max())
    return {
        "tokens": len(ours),
        "largest_difference": difference,
        "relative_difference": difference / float(np.abs(theirs).max()),
        "kl": float(np.mean(divergences)),
        "top_10_overlap": float(np.mean(overlaps)),
        "argmax_agreement": float(np.mean(ours.argmax(-1) == theirs.argmax(-1))),
    }


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def compare(model: Model, prompts: Iterable[str], dtype: Literal["float32", "bfloat16"]) -> list[dict[str, Any]]:
    """`compare_logits` of each prompt, with the prompt. Raises UserError for one that the tokenizer leaves empty."""
    encoded = {prompt: model.tokenizer.encode(prompt) for prompt in prompts}
    for prompt, tokens in encoded.items():
        if not tokens:
            raise UserError(f"prompt {prompt!r} has no tokens in the vocabulary of {model.name}")
    reference = reference_model(model)
    import torch

    params = load_params(model.folder, model.config, make_mesh(MeshShape(), jax.local_devices(backend="cpu")[:1]))
    config = dataclasses.replace(model.config, compute_dtype=dtype)
    forward = jax.jit(functools.partial(logits, config=config))
    rows = []
    for prompt, tokens in encoded.items():
        # Lengths rounded up to 16, 64, 256, ..., so that few are compiled.
        padded = np.zeros(
            (1, next(size for size in (4**i for i in itertools.count(2)) if size >= len(tokens))), np.int32
        )
        padded[0, : len(tokens)] = tokens
        ours = np.asarray(forward(params, padded))[0, : len(tokens)]
        with torch.no_grad():
            theirs = reference(torch.tensor([tokens], dtype=torch.long), use_cache=False).logits[0].numpy()
        rows.append({"prompt": prompt, **compare_logits(ours, theirs)})
    return rows


def port_table(rows: list[dict[str, Any]], arguments: CheckPort) -> Table:
    table = Table(
        title=Text(f"{arguments.model}: the port ({arguments.dtype}) beside transformers (float32)", "italic"),
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption="max |\u0394|: the largest difference of two logits, relative: to the largest one. "
        "KL(transformers || port), overlap of the ten most likely tokens and agreement on the most likely "
        "one: means over tokens. "
        f"Bounds: KL {arguments.kl_bound:g}, relative {arguments.logit_bound:g}; a prompt in red is beyond one.",
        caption_justify="left",
    )
    table.add_column("prompt", no_wrap=True, max_width=24)
    for name in ("tokens", "max |\u0394|", "relative", "KL, nats", "top 10", "argmax"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(repr(row["prompt"])[1:-1]),  # as Text: brackets in it are no markup
            str(row["tokens"]),
            f"{row['largest_difference']:.1e}",
            f"{row['relative_difference']:.1e}",
            f"{row['kl']:.1e}",
            f"{row['top_10_overlap']:.1%}",
            f"{row['argmax_agreement']:.1%}",
            style=None if row["passes"] else "red",
        )
    return table


def main() -> int:
    arguments = parse(CheckPort, __doc__)
    for name in ("kl_bound", "logit_bound"):
        if not getattr(arguments, name) > 0:
            raise UserError(f"{name} is {getattr(arguments, name)}: accepted is a positive number")
    prompts = read_prompts(arguments.prompts) if arguments.prompts else PROMPTS
    rows = compare(open_model(arguments.model), prompts, arguments.dtype)
    for row in rows:
        # So written, NaN does not pass.
        row["passes"] = row["kl"] <= arguments.kl_bound and row["relative_difference"] <= arguments.logit_bound
    failed = sum(not row["passes"] for row in rows)
    verdict = f"{failed} of {len(rows)} prompts are beyond a bound" if failed else f"all {len(rows)} prompts pass"
    if arguments.json:
        bounds = {"kl_bound": arguments.kl_bound, "logit_bound": arguments.logit_bound}
        print_json(
            {"model": arguments.model, "dtype": arguments.dtype, **bounds, "passes": not failed, "prompts": rows}
        )
        if failed:
            print(verdict, file=sys.stderr)
    else:
        Console().print(port_table(rows, arguments))
        print(f"{'FAILED' if failed else 'passed'}: {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    run(main)
