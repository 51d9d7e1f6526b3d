#!/usr/bin/env bash
# Installs this project beside a vLLM that lies in a folder of its own, without an index.
# usage: source scripts/gpu/setup.sh SITE
python3 -m pip install -q --no-deps --no-build-isolation --target "$1" . 2>&1 | tail -2
rm -rf "$1"/{quirks_core,worker,quirks_plugins}
export PYTHONPATH=$1:$PWD HF_HUB_OFFLINE=1
