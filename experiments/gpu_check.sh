#!/usr/bin/env bash
# Under 8 minutes on one GPU with 80 GB or more: what decoding and updates reach there, beside what the GPU can do.
# The table goes to the screen and, with the device's name, to a file in experiments/results/.
#     bash experiments/gpu_check.sh
# Needs jax[cuda13], flax, optax, orbax-checkpoint, transformers, rich, tyro and jaxtyping.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
mkdir -p experiments/results
device=$("$python" -c 'import jax; print(jax.devices()[0].device_kind.replace(" ", "_"))')
"$python" -m experiments.benchmark accelerator "$@" | tee "experiments/results/gpu_check_$device.txt"
exit "${PIPESTATUS[0]}"
