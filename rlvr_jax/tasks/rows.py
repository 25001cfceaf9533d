"""Rows of a stored dataset: from the hub, from a JSONL file, or from a folder of JSONL files."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.task import Row, Split, in_held_out

_FILES: dict[Split, str] = {"train": "train.jsonl", "held_out": "test.jsonl"}


@dataclasses.dataclass(frozen=True)
class Source:
    """What is to be known of a dataset to load it."""

    name: str
    hub: Mapping[Split, tuple[tuple[str, str | None, str], ...]]
    """For each split that there is: the parts (hub id, configuration, split) that it is made of, in order."""
    question: tuple[str, ...]
    """Names that the field of the question may have, the first that a row has being taken."""
    answer: tuple[str, ...]
    """The same for the answer."""
    gold: Callable[[str], str] = str.strip
    """From the text of the answer's field to the final answer alone."""


class StoredRows:
    """Rows by index, held-out ones in file order, train ones in a new order each epoch, decided by (seed, epoch).

    `data` is a folder with train.jsonl and test.jsonl (or one of the two), one JSONL file, of which an eighth, chosen
    by question text, is held out (all of it where the source has no train split), or `None` for the hub.
    Everything is loaded when first asked for. Raises UserError for data that is not there or has other fields.
    """

    def __init__(self, source: Source, data: str | None):
        self._load = functools.cache(lambda split: _load(source, data, split))
        self._order = functools.lru_cache(2)(self._shuffled)
        self._name = source.name

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        rows = self._load(split)
        if not rows:
            raise UserError(f"{self._name} has no {split} rows; accepted is data with some")
        if split == "held_out":
            return rows[index]
        epoch, place = divmod(index, len(rows))
        return rows[self._order(seed, epoch)[place]]

    def _shuffled(self, seed: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(self._load("train")))

    def size(self, split: Split) -> int:
        return len(self._load(split))


def _load(source: Source, data: str | None, split: Split) -> list[Row]:
    pairs = _from_hub(source, split) if data is None else _from_path(source, Path(data).expanduser(), split)
    return [Row(i, question, source.gold(answer)) for i, (question, answer) in enumerate(pairs)]


def _from_path(source: Source, path: Path, split: Split) -> list[tuple[str, str]]:
    if path.is_dir():
        if not any((path / file).is_file() for file in _FILES.values()):
            raise UserError(f"{source.name} data: {path / 'train.jsonl'} does not exist, nor does test.jsonl beside it")
        file = path / _FILES[split]
        return _read_jsonl(source, file) if file.is_file() else []
    if not path.is_file():
        raise UserError(
            f"{source.name} data: {path} does not exist; accepted is a JSONL file or a folder with train.jsonl and "
            "test.jsonl"
        )
    pairs = _read_jsonl(source, path)
    if "train" not in source.hub:
        return pairs if split == "held_out" else []
    return [pair for pair in pairs if in_held_out(pair[0]) == (split == "held_out")]


def _read_jsonl(source: Source, file: Path) -> list[tuple[str, str]]:
    return [_pair(source, row, where) for where, row in read_jsonl(file)]


def read_jsonl(file: Path) -> Iterator[tuple[str, object]]:
    """(where, value) of each line. Raises UserError, naming file and line, for one that is not JSON."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield f"{file}, line {number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{file}, line {number}: not JSON ({error.msg})") from error


def _pair(source: Source, row: object, where: str) -> tuple[str, str]:
    """Question and answer of a row; raises UserError, naming the place, where one is missing or no string."""
    found = []
    for names in (source.question, source.answer):
        text = next((row[name] for name in names if name in row), None) if isinstance(row, dict) else None
        if not isinstance(text, str):
            fields = " and ".join(" or ".join(names) for names in (source.question, source.answer))
            raise UserError(f"{where}: accepted are objects with the strings {fields}")
        found.append(text)
    return found[0], found[1]


def _from_hub(source: Source, split: Split) -> list[tuple[str, str]]:
    import datasets

    pairs = []
    for hub_id, configuration, hub_split in source.hub.get(split, ()):
        try:
            rows = datasets.load_dataset(hub_id, configuration, split=hub_split).to_list()
        # The hub's client raises errors of several libraries (its own, HTTP, socket): all mean "not to be had".
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise UserError(
                f"{hub_id} could not be fetched from the hub ({reason}); "
                "accepted is also --data with a JSONL file or a folder"
            ) from error
        pairs += [_pair(source, row, f"{hub_id}, row {i}") for i, row in enumerate(rows)]
    return pairs
