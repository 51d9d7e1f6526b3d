#!/usr/bin/env bash
# Paired runs of every quirk whose evidence is missing on this GPU, or of those named, several at the same time, with CUDA graphs
# as by vLLM's defaults; QUIRKS_LAB_EAGER=1 makes the engines eager. Run it again to go on where it was ended.
# Afterwards, where the repository is: python scripts/gpu/record.py FOLDER_FOR_RESULTS/evidence.csv
# usage: scripts/gpu/prove.sh FOLDER_FOR_RESULTS SECONDS [JOBS [ID...]]
set -uo pipefail
out=$(realpath "${1:?usage: prove.sh FOLDER SECONDS [JOBS [ID...]]}")
share=$(mktemp -d)  # for this script alone: an engine that shares the GPU is slow
python3 -m pip install -q --no-deps --no-build-isolation --target "$share" scripts/gpu/share 2>&1 | tail -2
export PYTHONPATH=$share:$PYTHONPATH
export TRITON_F32_DEFAULT=ieee  # float32 means float32, as on the CPU; Triton's kernels round to TF32 otherwise
chosen=("${@:4}")
timeout -s INT "${2:?}" python3 -m quirks_core.cli prove "${chosen[@]:---changed}" --jobs "${3:-8}" --timeout 400 --record \
    --output "$out/prove.json"
cp quirks_plugins/evidence.csv "$out"
