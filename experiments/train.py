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
from experiments.compiling.arrays import Lengths
from experiments.planning import plan, shown
from experiments.presets import PRESETS
from rlvr_jax.errors import UserError
from rlvr_jax.models import is_hub_id, open_config
from rlvr_jax.reports import comparison_table, summarize
from rlvr_jax.sharding import agreed, is_first_host, join_hosts
from rlvr_jax.tasks import make_task
from rlvr_jax.training import TrainConfig, prepare, train
from rlvr_jax.training.preemption import stopping_at_once

ASSUMED_PROMPT_TOKENS = 256
"""Of the longest prompt, where no tokenizer is at hand to count."""


@dataclasses.dataclass(frozen=True)
class Train:
    """Train one policy."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on from the latest checkpoint of the output folder, if there is one."""
    dry_run: bool = False
    """Print what the run would sample, hold and write, and stop. Of a model on a hub only the config is read; with one
    that is here, everything up to the first step is checked."""
    topology: str | None = None
    """With --dry-run: chips to plan for, v5e:2x4 for example, of which none need be here. Default: as many devices as
    the mesh names."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def dry_run(arguments: Train) -> None:
    """Prints the plan."""
    config = arguments.config
    if arguments.topology is None and not is_hub_id(config.model):
        with agreed():
            setup = prepare(config)
        encoder, task, model = setup.roller.encoder, setup.roller.task, setup.model.config
        prefix, prompt = encoder.prefix.size, encoder.length
    else:
        task, model = make_task(config.task, config.data, config.prompt_format), open_config(config.model)
        prefix, prompt = 0, config.max_prompt_tokens or ASSUMED_PROMPT_TOKENS
    lengths = Lengths(prefix, prompt, config.max_new_tokens or task.max_new_tokens)
    figures = plan(config, model, lengths, arguments.topology)
    if not is_first_host():
        return
    if arguments.json:
        print_json(as_dict(config) | {"output": str(config.folder), "plan": figures})
    else:
        Console().print(shown(config, figures))


@stopping_at_once()
def main() -> None:
    arguments = parse_with_presets({name: Train(config) for name, config in PRESETS.items()}, __doc__)
    config = arguments.config
    join_hosts()
    if arguments.dry_run:
        return dry_run(arguments)
    if arguments.topology is not None:
        raise UserError(f"topology is {arguments.topology!r}: accepted with --dry-run; a run takes the devices here")
    with agreed():
        setup = prepare(config)
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
