#!/usr/bin/env bash
# Runs tests of core, plugins and command line without an engine, with each Python that is found here.
# usage: check_core.sh [TESTS AND OPTIONS OF PYTEST]     PYTHONS="3.12 3.13" names the versions
set -euo pipefail
cd "$(dirname "$0")/.."
# What depends on Python most, in some twenty seconds.
tests=(
    tests/core/test_{apply,config,declaration,imports,match,patching,plan,planning,quirk,registry,resolve,sources}.py
    tests/cli/test_{commands,list_and_show,plan}.py
)

# find_python VERSION: an interpreter on the path that runs, or one of pyenv.
find_python() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit(sys.version_info[:2] != (${1/./, }))" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
}

# environment PYTHON FOLDER: the rules and what the tests need, without an engine.
environment() {
    "$1" -m venv "$2"
    local install=("$2/bin/pip" --disable-pip-version-check install -q -c constraints.txt)
    "${install[@]}" "setuptools>=77" hypothesis psutil pytest-timeout pytest-xdist
    "${install[@]}" --no-build-isolation -e ".[testing,upgrade]"
    rm -rf ./*.egg-info  # programs that run in the checkout would read it
    touch "$2/ready"
}

for version in ${PYTHONS:-3.11 3.12 3.13 3.14}; do
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "==> Python $version is not here: skipped"
        continue
    fi
    venv=build/python-$version
    echo "==> $("$python" --version)"
    [ "$venv/ready" -nt pyproject.toml ] || environment "$python" "$venv"
    "$venv/bin/python" -m pytest -q -p no:cacheprovider -m "not engine" "${@:-${tests[@]}}"
done
