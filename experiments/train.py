"""One run: sample, verify, update, evaluate, checkpoint.

python -m experiments.train smollm2_arithmetic
python -m experiments.train gsm8k --model OWNER/NAME --objective group_mean_std

At SIGTERM it saves and ends with status 75, and what else kills it costs the steps since the last checkpoint: a loop
around it, which stops at the end (0), at a wrong setting (2) and at a run that cannot go on (3), survives any number of
both, and ends in the same bits.

experiments/launch/until_done.sh gsm8k --model OWNER/NAME
"""

import dataclasses
from typing import Annotated

import tyro
from rich.console import Console

from experiments.command import as_dict, parse_with_presets, print_json, run
from experiments.presets import PRESETS
from rlvr_jax.reports import comparison_table, summarize
from rlvr_jax.sharding import agreed, is_first_host, join_hosts
from rlvr_jax.training import TrainConfig, prepare, train
from rlvr_jax.training.preemption import stopping_at_once


@dataclasses.dataclass(frozen=True)
class Train:
    """Train one policy."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on from the latest checkpoint of the output folder, if there is one."""
    dry_run: bool = False
    """Check everything up to the first step, print the configuration and the plan, and stop."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def plan(config: TrainConfig, task_tokens: int) -> dict[str, int]:
    """What the run samples and writes at most, where a task's completions have `task_tokens` by default."""
    sampled = config.prompts_per_step * config.samples_per_prompt * config.rollouts_per_step
    every, questions = config.evaluate_every, config.evaluation_questions * config.evaluation_samples
    evaluations = 2 + ((config.steps - 1) // every if every else 0)
    return {
        "completions": config.steps * sampled,
        "new_tokens": config.steps * sampled * (config.max_new_tokens or task_tokens),
        "updates": config.steps * config.updates_per_rollout,
        "evaluations": evaluations,
        "evaluated_completions": evaluations * questions,
        "checkpoints": -(-config.steps // config.checkpoint_every) if config.checkpoint_every else 0,
    }


@stopping_at_once()
def main() -> None:
    arguments = parse_with_presets({name: Train(config) for name, config in PRESETS.items()}, __doc__)
    config = arguments.config
    join_hosts()
    with agreed():
        setup = prepare(config)
    if arguments.dry_run:
        if is_first_host():
            planned = plan(config, setup.roller.task.max_new_tokens)
            print_json(as_dict(config) | {"output": str(config.folder), "plan": planned})
        return
    result = train(config, setup, resume=arguments.resume, name=config.objective)
    if not is_first_host():
        return
    summary = summarize({config.objective: [result]})
    if arguments.json:
        print_json(summary | {"output": str(result.folder)})
    else:
        Console().print(comparison_table(summary))
        print(f"kept in {result.folder}")


if __name__ == "__main__":
    run(main)
