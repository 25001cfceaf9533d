"""The train rows of a run, batch by batch, as a grain pipeline: from any place on, each host its share, read ahead."""

from typing import TYPE_CHECKING

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.task import Task

if TYPE_CHECKING:
    import grain


def train_batches(
    task: Task, seed: int, start: int, batch: int, *, host: int = 0, hosts: int = 1
) -> "grain.DatasetIterator":
    """Batches without end, each a list of rows, of the order that `seed` gives the task, from its place `start` on.

    Step i (from 0) has the places start + i * batch to start + (i + 1) * batch - 1, of which host h takes the h-th of
    `hosts` equal parts: put one after the other these are the batch of a single host. All state is one place in the
    order: what is read ahead is not counted, and a pipeline that starts at `start + i * batch` goes on with step i,
    whatever its batch and its hosts are. Raises UserError for a batch that hosts cannot share equally.
    """
    if hosts < 1 or batch % hosts or not 0 <= host < hosts:
        raise UserError(
            f"{batch} prompts a step for host {host} of {hosts}: accepted are equal shares, and hosts from 0 on"
        )
    import grain  # takes a second or two, and only training needs it

    share = batch // hosts
    places = grain.MapDataset.range(start, 2**62).batch(batch, batch_fn=list)
    rows = places.map(lambda step: [task.row("train", place, seed) for place in step[host * share :][:share]])
    # Batches are read by other threads while the model works. Where rows lie on this machine that saves little; where
    # each is fetched from a bucket it hides all of it.
    return iter(rows.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=4)))
