"""What an evaluation leaves on disk, batch by batch, so that a killed one goes on where it was.

evaluation.json     the settings
completions/        one Parquet file a batch: what was asked, sampled and judged, one row a completion
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation.evaluation import Evaluation
from rlvr_jax.sharding import agreed, is_first_host
from rlvr_jax.tasks import Row

_TYPES = {
    "step": pyarrow.int32(),
    "question_id": pyarrow.int64(),
    "sample": pyarrow.int32(),
    "tokens": pyarrow.int32(),
    "truncated": pyarrow.bool_(),
}


class EvaluationFolder:
    """The folder of one evaluation that may still be going on."""

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool):
        """Makes the folder, or takes up an earlier one with the same settings when `resume` is set.

        Raises UserError when the folder holds something else, an evaluation with other settings (the first that
        differs is named), or one that `resume` does not allow to continue.
        """
        self.path = path
        described = json.loads(json.dumps(settings, default=str))
        # Nobody writes before all hosts have looked.
        with agreed():
            if path.exists() and not path.is_dir():
                raise UserError(f"output is {str(path)!r}: a file is there, accepted is a new folder")
            if path.is_dir() and any(path.iterdir()):
                self._check_same(described, resume)
        (path / "completions").mkdir(parents=True, exist_ok=True)
        if is_first_host():
            _write(path / "evaluation.json", lambda scratch: scratch.write_text(json.dumps(described, indent=2)))

    def _check_same(self, described: Mapping[str, Any], resume: bool) -> None:
        earlier = _settings(self.path, "accepted is a new folder")
        if not resume:
            raise UserError(
                f"output is {str(self.path)!r}: the folder holds another evaluation; "
                "accepted are --resume, to continue it, or another --output"
            )
        for name, value in described.items():
            if earlier.get(name) != value:
                raise UserError(
                    f"{name} is {value!r}, but the evaluation in {str(self.path)!r} has {earlier.get(name)!r}: "
                    "accepted is the same value"
                )

    def _file(self, number: int) -> Path:
        return self.path / "completions" / f"batch_{number:06d}.parquet"

    def read(self, number: int, asked: Sequence[Row]) -> list[dict[str, Any]] | None:
        """Completion rows of a batch that is done, None where it is not.

        Raises UserError when they answer other questions than `asked`: then the data has changed since.
        """
        file = self._file(number)
        if not file.is_file():
            return None
        rows = read_completions(file)
        kept = list(dict.fromkeys((row["question_id"], row["question"], row["gold"]) for row in rows))
        if kept != [(row.id, row.question, row.answer) for row in asked]:
            raise UserError(
                f"{file} holds other questions than the data now has: accepted is the same data, or another --output"
            )
        return rows

    def write(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keeps the completion rows of a batch."""
        write_completions(self._file(number), rows)


def write_completions(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Completion rows as Parquet; the file is whole or absent."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    # Types are fixed by name: a column of a batch may hold nothing but None.
    schema = pyarrow.schema([(name, _type(name)) for name in names])
    table = pyarrow.Table.from_pylist(list(rows), schema)
    _write(file, lambda scratch: pyarrow.parquet.write_table(table, scratch))


def read_completions(file: Path) -> list[dict[str, Any]]:
    """Completion rows as `write_completions` keeps them."""
    # Not read_table: a folder above that is named like KEY=VALUE would add a column.
    return pyarrow.parquet.ParquetFile(file).read().to_pylist()


def read_evaluation(path: Path) -> tuple[Evaluation, dict[str, Any]]:
    """A finished evaluation and its settings. Raises UserError when the folder holds none, or an unfinished one."""
    settings = _settings(path, "accepted is the folder of an evaluation")
    rows = [row for file in sorted((path / "completions").glob("batch_*.parquet")) for row in read_completions(file)]
    due = settings["questions"] * settings["samples"]
    if len(rows) != due:
        raise UserError(
            f"the evaluation in {str(path)!r} has {len(rows)} of {due} completions; accepted is a finished one "
            "(--resume continues it)"
        )
    return Evaluation.from_rows(in_order(rows), settings["max_new_tokens"]), settings


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Completion rows by question, then by sample."""
    return sorted(rows, key=lambda row: (row["question_id"], row["sample"]))


def _settings(path: Path, accepted: str) -> dict[str, Any]:
    file = path / "evaluation.json"
    if not file.is_file():
        raise UserError(f"{str(path)!r} holds no evaluation: {accepted}")
    return json.loads(file.read_text())


def _type(name: str) -> pyarrow.DataType:
    return pyarrow.bool_() if name.startswith("correct") else _TYPES.get(name, pyarrow.string())


def _write(file: Path, write: Callable[[Path], Any]) -> None:
    """Aside, then renamed: the file is whole or absent."""
    scratch = file.with_name(f".{file.name}.part")
    write(scratch)
    os.replace(scratch, file)
