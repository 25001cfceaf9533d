"""One run: sample, verify, update, evaluate, checkpoint.

python -m experiments.train smollm2_arithmetic
python -m experiments.train gsm8k --model OWNER/NAME --objective group_mean_std

At SIGTERM it saves and ends with status 75, and what else kills it costs the steps since the last checkpoint: a loop
around it, which stops at the end (0), at a run that cannot go on (1) and at a wrong setting (2), survives any number of
both, and ends in the same bits.

until python -m experiments.train gsm8k --model OWNER/NAME --resume; do [ $? -gt 2 ] || break; done
"""

import dataclasses
from typing import Annotated

import tyro
from rich.console import Console

from experiments.command import as_dict, parse_with_presets, print_json, run
from experiments.presets import PRESETS
from rlvr_jax.reports import comparison_table, summarize
from rlvr_jax.training import TrainConfig, prepare, train
from rlvr_jax.training.preemption import stopping_at_once


@dataclasses.dataclass(frozen=True)
class Train:
    """Train one policy."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on from the latest checkpoint of the output folder, if there is one."""
    dry_run: bool = False
    """Check everything up to the first step, print the configuration, and stop."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


@stopping_at_once()
def main() -> None:
    arguments = parse_with_presets({name: Train(config) for name, config in PRESETS.items()}, __doc__)
    config = arguments.config
    setup = prepare(config)
    if arguments.dry_run:
        print_json(as_dict(config) | {"output": str(config.folder)})
        return
    result = train(config, setup, resume=arguments.resume, name=config.objective)
    summary = summarize({config.objective: [result]})
    if arguments.json:
        print_json(summary | {"output": str(result.folder)})
    else:
        Console().print(comparison_table(summary))
        print(f"kept in {result.folder}")


if __name__ == "__main__":
    run(main)
