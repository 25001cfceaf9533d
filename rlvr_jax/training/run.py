"""One run, top to bottom: sample, verify, update, evaluate, checkpoint."""

import contextlib
import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rlvr_jax.errors import RunStopped, UserError
from rlvr_jax.evaluation import Evaluation, Pending, evaluate
from rlvr_jax.models import load_params
from rlvr_jax.sharding import is_first_host, named_sharding, own_rows, wait_for_hosts
from rlvr_jax.tasks.pipeline import train_batches
from rlvr_jax.training.batch import make_batch, trainer_log_probabilities
from rlvr_jax.training.collect import collect
from rlvr_jax.training.compilations import compilations
from rlvr_jax.training.config import TrainConfig
from rlvr_jax.training.metrics import batch_metrics
from rlvr_jax.training.preemption import Preemption
from rlvr_jax.training.progress import RunProgress
from rlvr_jax.training.run_folder import RunFolder, read_jsonl
from rlvr_jax.training.setup import Setup, first_state, open_checkpoints, update_settings
from rlvr_jax.training.skipped import SkippedUpdates
from rlvr_jax.training.state import policy_params
from rlvr_jax.training.update import update


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a finished run shows."""

    folder: Path
    metrics: list[dict[str, Any]]
    timings: list[dict[str, Any]]
    evaluations: dict[int, Evaluation]

    @property
    def before(self) -> Evaluation:
        return self.evaluations[min(self.evaluations)]

    @property
    def after(self) -> Evaluation:
        return self.evaluations[max(self.evaluations)]


def train(
    config: TrainConfig,
    setup: Setup,
    *,
    resume: bool = False,
    name: str = "train",
    before: Evaluation | None = None,
) -> RunResult:
    """Trains and returns what the run folder then holds.

    With `resume` an earlier run in the same folder goes on from its latest checkpoint, and ends in the same
    bits as if it had never stopped. `before` is the evaluation of the untrained policy where it is known.

    At SIGTERM the state is saved and Preempted raised. Raises RunStopped, with the last good state saved, where updates
    are not finite for too long, and where a file cannot be written.
    """
    if setup.roller.task.size("train") == 0:
        raise UserError(f"task is {config.task!r} with data {config.data!r}: no rows to train on; accepted is another")
    folder = RunFolder(config, resume=resume)
    if resume and not config.checkpoint_every and config.steps in folder.evaluations():
        return read_result(folder.path)
    model, mesh, roller = setup.model, setup.mesh, setup.roller
    objective = config.resolved_objective
    max_new_tokens = config.max_new_tokens or roller.task.max_new_tokens
    settings = update_settings(config, model.config, max_new_tokens)
    evaluation_settings = {
        "questions": config.evaluation_questions,
        "samples": config.evaluation_samples,
        "max_new_tokens": max_new_tokens,
        "temperature": config.evaluation_temperature,
        "batch": config.evaluation_batch,
    }

    def to_save(step: int) -> bool:
        every = config.checkpoint_every
        return bool(every) and (step == config.steps or step % every == 0)

    def to_evaluate(step: int) -> bool:
        every = config.evaluate_every
        return step == config.steps or (bool(every) and step % every == 0)

    with contextlib.closing(folder), open_checkpoints(config, model.config, folder.path) as checkpoints:
        if not resume and checkpoints.steps:
            raise UserError(
                f"checkpoint_folder is {str(checkpoints.folder)!r}: it holds another run's checkpoints; "
                "accepted are --resume, to continue it, or another folder"
            )
        state = first_state(config, setup, checkpoints)
        done = int(state.step)
        checkpoints.require_room(state, sum(map(to_save, range(done + 1, config.steps + 1))))
        folder.rewind(done)
        skipped_updates = SkippedUpdates(folder.path)
        needs_reference = config.kl_coefficient or config.lora
        reference = load_params(model.folder, model.config, mesh) if needs_reference else None
        temperature = jnp.float32(config.temperature)

        own = own_rows(mesh, config.prompts_per_step).tolist()
        batches = train_batches(roller.task, config.seed, int(state.cursor), config.prompts_per_step, own=own)
        progress = RunProgress(name, config.steps, done, shown=is_first_host())

        # Of the next step, where an older policy sampled them.
        ahead: Pending | None = None
        if state.ahead is not None:
            ahead = roller.sampled(next(batches), state.ahead)
            state = dataclasses.replace(state, ahead=None)
        accuracy: float | None = None

        def save() -> str:
            if not config.checkpoint_every:
                return "not saved: checkpoint_every is 0"
            if int(state.step) == 0:
                return "that before the first step: there is nothing to save"
            rollouts = None if ahead is None else ahead.rollouts
            checkpoints.save(dataclasses.replace(state, ahead=rollouts), accuracy)
            checkpoints.wait()
            return f"saved after step {int(state.step)} in {checkpoints.folder}: --resume goes on from there"

        with contextlib.closing(batches), progress, Preemption(save) as preemption:
            if done:
                progress.say(f"resumed after step {done}")

            def show_evaluated(done: int) -> None:
                progress.evaluating(done, config.evaluation_questions)
                preemption.check()

            def evaluate_at(step: int, known: Evaluation | None = None) -> float:
                result = known or evaluate(
                    roller,
                    policy_params(state.params, reference, config.lora, config.compute_dtype),
                    **evaluation_settings,
                    progress=show_evaluated,
                )
                folder.write_evaluation(step, result)
                mean, low, high = result.accuracy
                progress.say(f"held-out accuracy {mean:.3f} [{low:.3f}, {high:.3f}] after step {step}")
                return mean

            def dispatch(step: int) -> Pending:
                # Joined weights are bound to no name, so that they are gone when the update needs the memory.
                return roller.dispatch(
                    policy_params(state.params, reference, config.lora, config.compute_dtype),
                    next(batches),
                    seed=config.seed,
                    step=step,
                    samples=config.samples_per_prompt,
                    max_new_tokens=max_new_tokens,
                    temperature=config.temperature,
                    precision=config.rollout,
                )

            if done == 0:
                evaluate_at(0, before)
            elif to_evaluate(done) and not folder.evaluation_file(done).is_file():
                evaluate_at(done)
            for step in range(done + 1, config.steps + 1):
                preemption.check_before(step)
                started, compiled = time.perf_counter(), compilations()
                pending = ahead or dispatch(step)
                # Before the update, which the parameters are donated to. Not across a checkpoint: after it, a resumed
                # run does not have them.
                following = None
                if config.staleness and step != config.steps and not to_save(step):
                    following = dispatch(step + 1)
                collected = collect(
                    pending,
                    functools.partial(dispatch, step),
                    prompts=config.prompts_per_step,
                    rollouts=config.rollouts_per_step,
                    mesh=mesh,
                )
                preemption.check()
                graded, consumed = collected.graded, len(collected.rewards)
                prompts, rollouts = graded.prompts, graded.rollouts
                updating = time.perf_counter()
                rewards = jax.make_array_from_process_local_data(
                    named_sharding(mesh, ("batch",)), graded.rewards, graded.rewards.shape
                )
                log_probabilities_under = functools.partial(
                    trainer_log_probabilities,
                    prompts=prompts,
                    tokens=rollouts.tokens,
                    prefix=roller.prefix,
                    temperature=temperature,
                    settings=settings,
                    mesh=mesh,
                )
                reference_log_probabilities = None
                if objective.loss.kl_in_reward:
                    reference_log_probabilities = log_probabilities_under(reference)
                batch, memory = make_batch(
                    prompts, rollouts, rewards, reference_log_probabilities, state.objective, objective=objective
                )
                if objective.loss.importance_cap and config.updates_per_rollout > 1:
                    old = log_probabilities_under(
                        policy_params(state.params, reference, config.lora, config.compute_dtype)
                    )
                    batch = dataclasses.replace(batch, old_log_probabilities=old)
                skipped = []
                for _ in range(config.updates_per_rollout):
                    state, metrics = update(
                        state, batch, roller.prefix, temperature, reference, memory, settings=settings, mesh=mesh
                    )
                    skipped.append(metrics["skipped"])
                ahead, accuracy = following, None
                state = dataclasses.replace(state, step=state.step + 1, cursor=state.cursor + consumed)
                metrics = {**batch_metrics(collected, batch), **jax.device_get(metrics)}
                metrics["skipped"] = sum(jax.device_get(skipped))
                metrics = {key: float(value) for key, value in metrics.items()}
                ended = time.perf_counter()
                # What is sampled ahead is hardly waited for.
                sampling = ended - started if config.staleness else graded.seconds["sample"]
                timings = {
                    "step_seconds": ended - started,
                    **{f"{key}_seconds": value for key, value in graded.seconds.items()},
                    "update_seconds": ended - updating,
                    "sampled_tokens_per_second": collected.tokens / sampling,
                    "compilations": compilations() - compiled,
                }
                folder.write_step(step, metrics, timings)
                folder.write_completions(step, graded)
                progress.step(step, metrics, timings)

                inputs = {"batch": batch, "prefix": roller.prefix, "temperature": temperature}
                skipped_updates.count(step, metrics["skipped"], state.params, inputs)
                if skipped_updates.in_a_row >= config.max_skipped_in_a_row:
                    raise RunStopped(
                        f"no finite loss and gradient in {skipped_updates.in_a_row} steps in a row, the last of them "
                        f"{step}, see {folder.path / 'skipped'}; the last good state is {save()}"
                    )
                if to_evaluate(step):
                    accuracy = evaluate_at(step)
                if to_save(step):
                    checkpoints.save(state, accuracy)
    wait_for_hosts("the run is written")
    return read_result(folder.path)


def read_result(path: Path) -> RunResult:
    """What a run folder holds."""
    evaluations = {
        int(file.stem.removeprefix("step_")): Evaluation.load(file)
        for file in sorted((path / "evaluations").glob("step_*.json"))
    }
    return RunResult(path, read_jsonl(path / "metrics.jsonl"), read_jsonl(path / "timings.jsonl"), evaluations)
