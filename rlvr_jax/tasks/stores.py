"""Where rows are kept: JSONL and Parquet files, folders of `datasets`, its hub, tensorflow-datasets as ArrayRecord.

Every store gives the same: for each of its splits a table of rows by place. All but JSONL are read row by row, when a
row is asked for, and the libraries are imported when their kind of store is opened.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr_jax.errors import UserError

ACCEPTED = (
    "a .jsonl or .parquet file; a folder with train and test files of these; a folder that datasets' save_to_disk "
    "wrote; a version folder of tensorflow-datasets; hub:OWNER/NAME[:CONFIGURATION]; tfds:NAME"
)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows by place."""

    size: int
    read: Callable[[int], Any]
    """From the place of a row, 0 to size - 1, to its fields by name."""
    where: Callable[[int], str]
    """The place of a row in words, for errors."""

    def select(self, places: Sequence[int]) -> "Table":
        """The rows at these places, in this order."""
        return Table(len(places), lambda i: self.read(places[i]), lambda i: self.where(places[i]))


def join(tables: Sequence[Table]) -> Table:
    """The rows of all tables, one table after the other."""
    if len(tables) == 1:
        return tables[0]
    places = [(table, i) for table in tables for i in range(table.size)]
    return Table(len(places), lambda i: places[i][0].read(places[i][1]), lambda i: places[i][0].where(places[i][1]))


def open_tables(data: str) -> dict[str, Table]:
    """The tables of a store by the name of their split; rows without a named split are "train".

    `data` is one of ACCEPTED. Raises UserError for what is not there or cannot be read.
    """
    kind, _, name = data.partition(":")
    if kind == "hub":
        hub_id, _, configuration = name.partition(":")
        return _of_datasets(fetch(hub_id, configuration or None), hub_id)
    if kind == "tfds":
        return _catalogue(name)
    path = Path(data).expanduser()
    if path.is_file():
        return {"train": _open_file(path)}
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return _saved(path)
    if (path / "features.json").is_file():
        return _version_folder(path)
    names = [f"{split}{suffix}" for split in ("train", "test", "validation") for suffix in (".jsonl", ".parquet")]
    files = [path / name for name in names if (path / name).is_file()]
    if len({file.stem for file in files}) < len(files):
        raise UserError(
            f"data is {data!r}: the same split twice ({', '.join(map(str, files))}); accepted is one of them"
        )
    if not files:
        tried = f"none of {', '.join(names)} in it" if path.is_dir() else "does not exist"
        raise UserError(f"data is {data!r}: {tried}; accepted are {ACCEPTED}")
    return {file.stem: _open_file(file) for file in files}


def read_jsonl(file: Path) -> Iterator[tuple[str, Any]]:
    """(where, value) of each line. Raises UserError, naming file and line, for one that is not JSON in UTF-8."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                value = json.loads(line.decode())
            except UnicodeDecodeError as error:
                raise UserError(f"{file}, line {number}: not UTF-8 text ({error.reason})") from error
            except json.JSONDecodeError as error:
                raise UserError(f"{file}, line {number}: not JSON ({error.msg})") from error
            yield f"{file}, line {number}", value


def _open_file(file: Path) -> Table:
    if file.suffix != ".parquet":
        lines = list(read_jsonl(file))
        return Table(len(lines), lambda i: lines[i][1], lambda i: lines[i][0])
    import datasets
    import pyarrow
    import pyarrow.parquet

    try:
        columns = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{file}: not Parquet ({_reason(error)}); accepted are {ACCEPTED}") from error
    return _table(datasets.Dataset(columns), str(file))


def _saved(folder: Path) -> dict[str, Table]:
    import datasets

    try:
        return _of_datasets(datasets.load_from_disk(folder), str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: datasets cannot load it ({_reason(error)}); accepted are {ACCEPTED}") from error


def fetch(hub_id: str, configuration: str | None, split: str | None = None) -> Any:
    """`datasets.load_dataset`. Raises UserError when the hub, or the copy of it in the cache, does not give it."""
    import datasets

    try:
        return datasets.load_dataset(hub_id, configuration, split=split)
    # The hub's client raises errors of several libraries (its own, HTTP, socket): all mean "not to be had".
    except Exception as error:
        raise UserError(
            f"{hub_id} could not be fetched from the hub ({_reason(error)}); accepted is also --data with a copy: "
            f"{ACCEPTED}"
        ) from error


def fetch_table(hub_id: str, configuration: str | None, split: str) -> Table:
    """One split of a dataset of the hub. Raises UserError as `fetch` does."""
    return _table(fetch(hub_id, configuration, split), hub_id)


def _of_datasets(stored: Any, name: str) -> dict[str, Table]:
    """Of a DatasetDict, or of a Dataset, which has no named splits."""
    splits = stored if isinstance(stored, Mapping) else {"train": stored}
    return {split: _table(rows, f"{name}, {split}") for split, rows in splits.items()}


def _table(rows: Any, name: str, decode: Callable[[Any], Any] = lambda row: row) -> Table:
    return Table(len(rows), lambda i: decode(rows[int(i)]), lambda i: f"{name}, row {i}")


def _catalogue(name: str) -> dict[str, Table]:
    """From the folder that tensorflow-datasets keeps (TFDS_DATA_DIR), prepared there when it is not yet."""
    import tensorflow_datasets as tfds

    # Its import makes the builders of GSM8K and MATH-500 known.
    import rlvr_jax.tasks.array_records  # noqa: F401

    try:
        return _of_tfds(tfds.data_source(name), f"tfds:{name}")
    except UserError:
        raise
    # Preparing a dataset of the catalogue may fail in as many ways as there are datasets.
    except Exception as error:
        raise UserError(
            f"tfds:{name} could not be prepared or read as ArrayRecord ({_reason(error)}); accepted is also --data "
            f"with a copy: {ACCEPTED}"
        ) from error


def _version_folder(folder: Path) -> dict[str, Table]:
    import tensorflow_datasets as tfds

    try:
        return _of_tfds(tfds.builder_from_directory(folder).as_data_source(), str(folder))
    # Its errors have no common type: not a dataset, another file format, a shard that is not there.
    except Exception as error:
        raise UserError(
            f"{folder} is no dataset of tensorflow-datasets in ArrayRecord form ({_reason(error)}); accepted are "
            f"{ACCEPTED}"
        ) from error


def _of_tfds(sources: Mapping[str, Any], name: str) -> dict[str, Table]:
    def decode(row: Mapping[str, Any]) -> dict[str, Any]:
        return {field: value.decode() if isinstance(value, bytes) else value for field, value in row.items()}

    return {split: _table(rows, f"{name}, {split}", decode) for split, rows in sources.items()}


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
