"""Completions to read: groups that say something, groups that are silent, with what the verifier made of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr_jax.reports.runs import Arms
from rlvr_jax.reports.series import completion_rows

_KINDS = ("mixed", "all wrong", "all right")
_LONGEST = 4000
# Control characters become the pictures that Unicode has for them; a browser shows none, or stops at one.
_VISIBLE = {i: 0x2400 + i for i in range(32) if chr(i) not in "\n\t"} | {127: 0x2421}


def sample_completions(arms: Arms, groups: int = 2, samples: int = 4) -> dict[str, list[dict[str, Any]]]:
    """Of each method's first seed, its first and its last step: some groups of each kind, some samples of each group.

    A method whose run keeps no completions has an empty list. Raises UserError for a file that cannot be read.
    """
    chosen: dict[str, list[dict[str, Any]]] = {}
    for label, (run, *_) in arms.items():
        files = run.completion_files()
        ends = dict.fromkeys((files[0], files[-1])) if files else ()
        chosen[label] = [
            {
                "step": int(file.stem.removeprefix("step_")),
                "seed": run.config.seed,
                "groups": _groups(file, run.config.samples_per_prompt, groups, samples),
            }
            for file in ends
        ]
    return chosen


def _groups(file: Path, size: int, most: int, samples: int) -> list[dict[str, Any]]:
    rows = completion_rows(file)
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    kinds = [_kind(group) for group in groups]
    found = []
    for kind in _KINDS:
        of_kind = [group for group, its_kind in zip(groups, kinds, strict=True) if its_kind == kind]
        found += [
            {
                "kind": kind,
                "share": f"{len(of_kind)} of {len(groups)} groups",
                "question": readable(group[0]["question"]),
                "gold": readable(group[0]["gold"]),
                "right": sum(row["correct"] for row in group),
                "size": len(group),
                "completions": [_completion(row) for row in _some(group, samples)],
            }
            for group in of_kind[:most]
        ]
    return found


def _kind(group: Sequence[dict[str, Any]]) -> str:
    right = {bool(row["correct"]) for row in group}
    return "mixed" if len(right) == 2 else "all right" if right == {True} else "all wrong"


def _some(group: Sequence[dict[str, Any]], samples: int) -> list[dict[str, Any]]:
    """The first ones, and in a mixed group both sorts of them."""
    first = {bool(group[i]["correct"]): i for i in reversed(range(len(group)))}
    rest = [i for i in range(len(group)) if i not in first.values()]
    return [group[i] for i in sorted([*first.values(), *rest][:samples])]


def _completion(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "text": readable(row["completion"]),
        "correct": bool(row["correct"]),
        "outcome": row.get("outcome") or ("correct" if row["correct"] else "wrong"),
        "reason": readable(row.get("reason") or ""),
        "tokens": row["tokens"],
        "truncated": bool(row.get("truncated")),
    }


def readable(text: str) -> str:
    """With control characters made visible and the middle of a very long text left out; not yet escaped."""
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return text.translate(_VISIBLE)
