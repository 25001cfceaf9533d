"""Held-out evaluation: the same questions and the same noise every time, so that differences are paired."""

from collections.abc import Callable

from jaxtyping import PyTree

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation.buckets import length_buckets
from rlvr_jax.evaluation.evaluation import Evaluation
from rlvr_jax.evaluation.folder import EvaluationFolder, in_order
from rlvr_jax.evaluation.rollout import Roller
from rlvr_jax.sampling import Truncation
from rlvr_jax.sharding import all_of, is_first_host, own_rows
from rlvr_jax.tasks import Row, Task

EVALUATION_STEP = 2**31 - 1
"""The step that addresses the noise of evaluations; no training step has it."""
DRAWN = 256
"""Questions of a whole evaluation where the task draws them without end."""


def held_out_rows(task: Task, questions: int | None) -> list[Row]:
    """The first `questions` of the held-out split, or all of it for None; never more than there are.

    Raises UserError where there are none.
    """
    size = task.size("held_out")
    if size == 0:
        raise UserError(f"task {task.name} has no held-out rows: accepted is data with some")
    wanted = (DRAWN if size is None else size) if questions is None else questions
    return [task.row("held_out", i) for i in range(wanted if size is None else min(wanted, size))]


def evaluate(
    roller: Roller,
    params: PyTree,
    *,
    questions: int | None,
    samples: int,
    max_new_tokens: int,
    temperature: float,
    batch: int,
    truncation: Truncation | None = None,
    folder: EvaluationFolder | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Samples and grades the first `questions` held-out questions (None: the whole split), `batch` at a time.

    Questions of like length are sampled together, the result is in the order of the data; since noise is addressed,
    a completion does not depend on its company. A last, smaller batch is filled up with repeats that do not count,
    so that one compiled shape serves all batches of a length. With a `folder`, each batch is kept there when it is
    done, and a batch that is there already is not sampled again. `progress` is told how many questions are done.
    Hosts share the questions of each batch; all return the whole, and the first alone writes to the folder.
    """
    own = own_rows(roller.mesh, batch)
    rows = held_out_rows(roller.task, questions)
    lengths = [roller.encoder.longest([row]) for row in rows]
    judged = []
    for number, bucket in enumerate(length_buckets(lengths, batch)):
        chosen = [rows[place] for place in bucket.places]
        part = None if folder is None else folder.read(number, chosen)
        if part is None:
            filled = chosen + [chosen[-1]] * (batch - len(chosen))
            graded = roller(
                params,
                [filled[i] for i in own],
                seed=0,
                step=EVALUATION_STEP,
                samples=samples,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                prompt_length=bucket.prompt_length,
                truncation=truncation,
            )
            order = {row.id: place for place, row in enumerate(chosen)}
            parts = all_of(graded.completion_rows(len(chosen)))
            part = sorted((row for part in parts for row in part), key=lambda row: order[row["question_id"]])
            if folder is not None and is_first_host():
                folder.write(number, part)
        judged += part
        progress(len(judged) // samples)
    return Evaluation.from_rows(in_order(judged), max_new_tokens)
