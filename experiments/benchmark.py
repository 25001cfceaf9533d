"""How fast it is, each figure beside its yardstick in the same run.

python -m experiments.benchmark                      # the quick start's step
python -m experiments.benchmark gsm8k --model FOLDER --data FOLDER --repeats 3
python -m experiments.benchmark objectives           # advantages beside plain mean-centring
python -m experiments.benchmark logprobs             # log-probabilities in chunks beside all at once
"""

from experiments.benchmarks.logprobs import LogProbsBenchmark, benchmark_logprobs
from experiments.benchmarks.objectives import ObjectivesBenchmark, benchmark_objectives
from experiments.benchmarks.step import StepBenchmark, benchmark_step
from experiments.command import parse_with_presets, run
from experiments.presets import PRESETS


def main() -> int | None:
    choices = {name: StepBenchmark(config) for name, config in PRESETS.items()}
    choices |= {"objectives": ObjectivesBenchmark(), "logprobs": LogProbsBenchmark()}
    arguments = parse_with_presets(choices, __doc__, default="smollm2_arithmetic")
    measure = {ObjectivesBenchmark: benchmark_objectives, LogProbsBenchmark: benchmark_logprobs}
    return measure.get(type(arguments), benchmark_step)(arguments)


if __name__ == "__main__":
    run(main)
