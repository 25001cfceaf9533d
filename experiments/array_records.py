"""GSM8K or MATH-500 as a dataset of tensorflow-datasets in ArrayRecord form, for random access from disk or a bucket.

python -m experiments.array_records gsm8k FOLDER                # from the hub
python -m experiments.array_records math500 FOLDER --data COPY  # from a local copy

Prints the version folder, which --data of the other commands accepts. tensorflow is not needed.
"""

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from experiments.command import parse, run


@dataclasses.dataclass(frozen=True)
class ArrayRecords:
    """Write a dataset."""

    dataset: Annotated[str, tyro.conf.Positional]
    """gsm8k or math500."""
    folder: Annotated[Path, tyro.conf.Positional]
    """It is written to FOLDER/DATASET/VERSION."""
    data: str | None = None
    """Rows to write: any form that --data of the other commands accepts; default: the dataset's home on the hub."""


def main() -> None:
    arguments = parse(ArrayRecords, __doc__)
    # Takes a second to import; not for --help.
    from rlvr_jax.tasks.array_records import write_array_records

    with contextlib.redirect_stdout(sys.stderr):
        folder = write_array_records(arguments.dataset, arguments.folder, arguments.data)
    print(folder)


if __name__ == "__main__":
    run(main)
