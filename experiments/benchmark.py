"""How fast it is, each figure beside its yardstick in the same run.

python -m experiments.benchmark                      # the quick start's step
python -m experiments.benchmark gsm8k --model FOLDER --data FOLDER --repeats 3
python -m experiments.benchmark step                 # the quick start's step beside TRL's and tunix's
python -m experiments.benchmark step_long            # 8 prompts x 8 samples x 64 tokens, beside the same
python -m experiments.benchmark update               # an update beside torch's
python -m experiments.benchmark sampling             # completions of unequal length beside transformers' generate
python -m experiments.benchmark objectives           # advantages beside plain mean-centring
python -m experiments.benchmark logprobs             # log-probabilities in chunks beside all at once
python -m experiments.benchmark accelerator          # decoding and updates of model shapes, random weights (GPU, TPU)
python -m experiments.benchmark lab                  # the lab's runs side by side beside one after another
python -m experiments.benchmark verifiers            # verdicts a second, and what hanging completions cost
python -m experiments.benchmark checkpoints          # the quick start's steps with checkpoints beside those without

Peers that are not installed are left out, which standard error says, unless `--peers` names them.
"""

from experiments.benchmarks.accelerator import AcceleratorBenchmark, benchmark_accelerator
from experiments.benchmarks.checkpoints import CheckpointsBenchmark, benchmark_checkpoints
from experiments.benchmarks.lab import LabBenchmark, benchmark_lab
from experiments.benchmarks.logprobs import LogProbsBenchmark, benchmark_logprobs
from experiments.benchmarks.objectives import ObjectivesBenchmark, benchmark_objectives
from experiments.benchmarks.sampling import SamplingBenchmark, benchmark_sampling
from experiments.benchmarks.step import STEPS, StepBenchmark, benchmark_step
from experiments.benchmarks.update import UpdateBenchmark, benchmark_update
from experiments.benchmarks.verifiers import VerifiersBenchmark, benchmark_verifiers
from experiments.command import parse_with_presets, run
from experiments.presets import PRESETS
from rlvr_jax.errors import UserError


def main() -> int | None:
    choices = {name: StepBenchmark(config, peers=()) for name, config in PRESETS.items()} | STEPS
    others = {
        "accelerator": (AcceleratorBenchmark(), benchmark_accelerator),
        "update": (UpdateBenchmark(), benchmark_update),
        "sampling": (SamplingBenchmark(), benchmark_sampling),
        "objectives": (ObjectivesBenchmark(), benchmark_objectives),
        "lab": (LabBenchmark(), benchmark_lab),
        "logprobs": (LogProbsBenchmark(), benchmark_logprobs),
        "verifiers": (VerifiersBenchmark(), benchmark_verifiers),
        "checkpoints": (CheckpointsBenchmark(), benchmark_checkpoints),
    }
    choices |= {name: settings for name, (settings, _) in others.items()}
    arguments = parse_with_presets(choices, __doc__, default="smollm2_arithmetic")
    if arguments.repeats < 1:
        raise UserError(f"repeats is {arguments.repeats}, accepted is 1 or more")
    measure = {type(settings): run_it for settings, run_it in others.values()}
    return measure.get(type(arguments), benchmark_step)(arguments)


if __name__ == "__main__":
    run(main)
