"""One run: sample, verify, update, evaluate, checkpoint.

python -m experiments.train smollm2_arithmetic
python -m experiments.train gsm8k --model OWNER/NAME --objective group_mean_std
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


def main() -> None:
    arguments = parse_with_presets({name: Train(config) for name, config in PRESETS.items()}, __doc__)
    config = arguments.config
    join_hosts()
    with agreed():
        setup = prepare(config)
    if arguments.dry_run:
        if is_first_host():
            print_json(as_dict(config) | {"output": str(config.folder)})
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
