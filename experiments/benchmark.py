"""How fast it is, each figure beside its yardstick in the same run.

python -m experiments.benchmark                      # the quick start's step
python -m experiments.benchmark gsm8k --model FOLDER --data FOLDER --repeats 3
python -m experiments.benchmark objectives           # advantages beside plain mean-centring
"""

from experiments.benchmarks.objectives import ObjectivesBenchmark, benchmark_objectives
from experiments.benchmarks.step import StepBenchmark, benchmark_step
from experiments.command import parse_with_presets, run
from experiments.presets import PRESETS


def main() -> int | None:
    choices = {name: StepBenchmark(config) for name, config in PRESETS.items()} | {"objectives": ObjectivesBenchmark()}
    arguments = parse_with_presets(choices, __doc__, default="smollm2_arithmetic")
    if isinstance(arguments, ObjectivesBenchmark):
        return benchmark_objectives(arguments)
    return benchmark_step(arguments)


if __name__ == "__main__":
    run(main)
