"""The train rows of a run, batch by batch, as a grain pipeline: from any place on, each host its share, read ahead."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.task import Task

if TYPE_CHECKING:
    import grain


def train_batches(
    task: Task, seed: int, start: int, batch: int, *, own: Sequence[int] | None = None
) -> "grain.DatasetIterator":
    """Batches without end, each a list of rows, of the order that `seed` gives the task, from its place `start` on.

    Step i (from 0) has the places start + i * batch to start + (i + 1) * batch - 1, of which this host reads its `own`
    rows alone, counted from 0 within a batch (`sharding.own_rows`); None: all. All state is one place in the order:
    what is read ahead is not counted, and a pipeline that starts at `start + i * batch` goes on with step i, whatever
    its batch and its hosts are. Raises UserError for rows that a batch does not have.
    """
    own = range(batch) if own is None else [int(row) for row in own]
    if outside := [row for row in own if not 0 <= row < batch]:
        raise UserError(f"row {outside[0]} of {batch} prompts a step: accepted are 0 to {batch - 1}")
    import grain  # takes a second or two, and only training needs it

    places = grain.MapDataset.range(start, 2**62).batch(batch, batch_fn=list)
    rows = places.map(lambda step: [task.row("train", place, seed) for place in (step[row] for row in own)])
    # Batches are read by other threads while the model works. Where rows lie on this machine that saves little; where
    # each is fetched from a bucket it hides all of it.
    return iter(rows.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=4)))
