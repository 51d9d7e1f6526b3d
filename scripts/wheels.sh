#!/usr/bin/env bash
# Builds the three distributions of this repository, each as a wheel and as its source, into dist/.
# usage: wheels.sh [OPTIONS OF BUILD]     PYTHON=python3.12 takes another interpreter
set -euo pipefail
cd "$(dirname "$0")/.."

# A build takes over what an earlier one listed, and leaves metadata that programs read which run in the checkout.
clean() { rm -rf ./*.egg-info wheels/*/*.egg-info; }

trap clean EXIT
clean
rm -rf dist
for folder in . wheels/worker wheels/lab; do
    "${PYTHON:-python3}" -m build --outdir dist "$@" "$folder"
done
