"""Rows of a stored dataset: the questions and answers in a table, whichever store it lies in."""

import dataclasses
import functools
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.stores import Table, fetch_table, join, open_tables
from rlvr_jax.tasks.stores import read_jsonl as read_jsonl
from rlvr_jax.tasks.task import Row, Split, in_held_out


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
    solution: tuple[str, ...] = ()
    """Names that the field of the worked solution may have, before those of the answer."""
    worked: Callable[[str], str] = str.strip
    """From the text of that field to what a model should have written."""


class StoredRows:
    """Rows by index, held-out ones in the order of the store, train ones in a new order each epoch, by (seed, epoch).

    `data` is one of `stores.ACCEPTED`, or None for the source's public home. Held-out rows are the split test, else
    validation; where there is neither, an eighth of the train rows, chosen by question text. A source without a train
    split has no train rows: what lies under no name is held out. A row's id is its place among the rows of its split.
    The first `shots` train rows are examples for the prompt, and not among the rows by index. Stores are opened when
    first asked for. Raises UserError for data that is not there or has other fields.
    """

    def __init__(self, source: Source, data: str | None, shots: int = 0):
        self._source, self._shots = source, shots
        self._tables = functools.cache(lambda: None if data is None else open_tables(data))
        self._table = functools.cache(self._find)
        self._order = functools.lru_cache(2)(self._shuffled)

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        size = self.size(split)
        if not size:
            raise UserError(f"{self._source.name} has no {split} rows; accepted is data with some")
        place = int(self._order(seed)[index]) if split == "train" else index
        source = self._source
        question, answer = self._texts(self._table(split), place, source.question, source.answer)
        return Row(place, question, source.gold(answer))

    def _shuffled(self, seed: int) -> Any:
        """By index, the places of the train rows, epoch after epoch without end; computed when asked for."""
        import grain  # takes a second or two, and only training needs it

        return grain.MapDataset.range(self._shots, self._table("train").size).seed(seed).shuffle().repeat()

    def size(self, split: Split) -> int:
        return max(self._table(split).size - (self._shots if split == "train" else 0), 0)

    @functools.cached_property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """Questions with worked solutions. Raises UserError where there are fewer train rows than shots."""
        source, table = self._source, self._table("train") if self._shots else join([])
        if table.size < self._shots:
            raise UserError(
                f"{source.name} has {table.size} train rows to take {self._shots} shots from; accepted is less"
            )
        names = source.solution + source.answer
        texts = [self._texts(table, i, source.question, names) for i in range(self._shots)]
        return tuple((question, source.worked(solution)) for question, solution in texts)

    def _find(self, split: Split) -> Table:
        tables = self._tables()
        if tables is None:
            return join([fetch_table(*part) for part in self._source.hub.get(split, ())])
        train, held_out = tables.get("train"), tables.get("test", tables.get("validation"))
        if "train" not in self._source.hub:
            train, held_out = None, held_out or train
        if train and not held_out:
            fields = self._source.question, self._source.answer
            questions = [self._texts(train, i, *fields)[0] for i in range(train.size)]
            return train.select([i for i, text in enumerate(questions) if in_held_out(text) == (split == "held_out")])
        return (train if split == "train" else held_out) or join([])

    def _texts(self, table: Table, place: int, *fields: tuple[str, ...]) -> list[str]:
        """The texts of a row's fields, each of several names; raises UserError, naming the place, where one is none."""
        row = table.read(place)
        texts = [_first(row, names) if isinstance(row, Mapping) else None for names in fields]
        if None in texts:
            wanted = " and ".join(" or ".join(names) for names in fields)
            raise UserError(f"{table.where(place)}: accepted are objects with the strings {wanted}")
        return [text for text in texts if text is not None]


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these fields that the row has, as text; None for none, or for what is neither text nor number."""
    value = next((row[name] for name in names if name in row), None)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None
