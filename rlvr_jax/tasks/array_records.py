"""GSM8K and MATH-500 as datasets of tensorflow-datasets, written as ArrayRecord, without tensorflow.

Importing this makes their names known: then `tfds.data_source("gsm8k", split="train")` prepares the dataset when it is
not yet there, and reads any row at random.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.stores import Table, fetch_table, open_tables


class Gsm8k(tfds.core.GeneratorBasedBuilder):
    """Grade-school word problems (arXiv 2110.14168): 7,473 to train on, 1,319 to test on."""

    VERSION = tfds.core.Version("1.0.0")
    FIELDS: ClassVar[dict[str, Any]] = {"question": tfds.features.Text(), "answer": tfds.features.Text()}
    HOME: ClassVar[dict[str, tuple[str, str | None, str]]] = {
        "train": ("openai/gsm8k", "main", "train"),
        "test": ("openai/gsm8k", "main", "test"),
    }

    url_infos: ClassVar[dict[str, Any]] = {}
    """Nothing is downloaded by address. Looking for checksums of such files needs a package that may not be there."""

    def __init__(self, *, data: str | None = None, **settings: Any):
        """`data` is a copy to write from, one of `stores.ACCEPTED`; default: the dataset's home on the hub."""
        self._data = data
        super().__init__(**{"file_format": "array_record", **settings})

    def _info(self) -> tfds.core.DatasetInfo:
        # Unshuffled, so that a row's place, which is its id, is the same as in every other store.
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            features=tfds.features.FeaturesDict(self.FIELDS),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        if self._data is None:
            tables = {split: fetch_table(*part) for split, part in self.HOME.items()}
        else:
            tables = open_tables(self._data)
            # One unnamed table is the test split of a dataset that has no other.
            if len(self.HOME) == 1 and "test" not in tables:
                tables = {"test": tables["train"]}
            lacking = [split for split in self.HOME if split not in tables]
            if lacking:
                raise UserError(f"data is {self._data!r}: no {', '.join(lacking)} rows; accepted is data with all")
        return {split: self._generate_examples(tables[split]) for split in self.HOME}

    def _generate_examples(self, table: Table) -> Iterator[tuple[int, dict[str, Any]]]:
        for place in range(table.size):
            row = table.read(place)
            lacking = [field for field in self.FIELDS if field not in row]
            if lacking:
                raise UserError(f"{table.where(place)}: no field {', '.join(lacking)}; accepted are rows with all")
            yield place, {field: row[field] for field in self.FIELDS}


class Math500(Gsm8k):
    """The 500 competition problems of MATH (arXiv 2103.03874) that are its usual test."""

    FIELDS: ClassVar[dict[str, Any]] = {
        **{name: tfds.features.Text() for name in ("problem", "solution", "answer", "subject")},
        "level": tfds.features.Scalar(np.int64),
        "unique_id": tfds.features.Text(),
    }
    HOME: ClassVar[dict[str, tuple[str, str | None, str]]] = {"test": ("HuggingFaceH4/MATH-500", None, "test")}


BUILDERS = {"gsm8k": Gsm8k, "math500": Math500}


def write_array_records(name: str, folder: Path, data: str | None = None) -> Path:
    """Writes a dataset below `folder` and returns its version folder, which `--data` accepts.

    Raises UserError for a name not in BUILDERS, and for data that cannot be had or lacks a field.
    """
    if name not in BUILDERS:
        raise UserError(f"dataset is {name!r}, accepted are {', '.join(BUILDERS)}")
    builder = BUILDERS[name](data=data, data_dir=folder)
    builder.download_and_prepare()
    return Path(builder.data_dir)
