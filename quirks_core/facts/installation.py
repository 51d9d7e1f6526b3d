"""Which parts of our own installation are missing, or hidden by another file.

`worker` is a distribution of its own, and a common name: a trainer's own ``worker.py``, in the folder of its script, is
imported instead of our package. What imports it by name, as entry points and other processes do, checks it here first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution, metadata, requires
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from quirks_core.base.errors import UsageError
from quirks_core.facts.packages import PACKAGES, distribution_of, installed_version
from quirks_core.source.source_tree import parsing

_PROJECT = "model-quirks"
#: No package index has this project (docs/install.md).
_WHERE = f"in a clone of {_PROJECT}"
_PACKAGE, _LAB = "worker", "worker.lab"
#: Extras with an engine; one of them is enough.
_ENGINES = ("cpu", "cuda")
#: Extras for those who work on this project.
_OURS = ("dev", "docs", "examples")
#: Distributions whose module has another name.
_DISTRIBUTIONS = {"PIL": "pillow", "yaml": "PyYAML"}


class HiddenPackageError(UsageError):
    """Another file is imported instead of our package."""


class MissingPackageError(UsageError):
    """A distribution of this project is not installed."""


def check_ours(module: str) -> None:
    """Makes sure that a module of `worker` is there, and ours, before it is imported; other packages are not checked.

    Raises:
        HiddenPackageError: Another file has the package's name, and is found first.
        MissingPackageError: The distribution that has the module is not installed.
    """
    if module.partition(".")[0] != _PACKAGE:
        return
    if file := in_the_way():
        raise HiddenPackageError(hidden(file))
    if problem := not_installed(module):
        raise MissingPackageError(problem)


def in_the_way(folder: Path | None = None) -> str | None:
    """Returns the file or folder that is imported instead of our package; None if there is none, or ours is not installed.

    Args:
        folder: Look there, as a script that lies in it would; as this process would if None.
    """
    ours = _ours()
    try:
        spec = find_spec(_PACKAGE) if folder is None else PathFinder.find_spec(_PACKAGE, [str(folder)])
    except ValueError:  # it is imported, and was made by hand
        return str(getattr(sys.modules[_PACKAGE], "__file__", None) or "a module without a file")
    if spec is None or spec.loader is None or ours is None:
        return None  # nothing, or a mere folder, which Python takes only if there is nothing else
    places = list(spec.submodule_search_locations or [spec.origin or "a module without a file"])
    return None if ours in [Path(place).resolve() for place in places] else places[0]


def _ours() -> Path | None:
    """Where our package is: beside this one, or where its distribution is; None if it is not installed."""
    beside = Path(__file__).resolve().parents[2] / _PACKAGE
    if (beside / "async_worker.py").is_file():  # any project may have a package of that name
        return beside
    try:
        return Path(str(distribution(f"{_PROJECT}-worker").locate_file(_PACKAGE))).resolve()
    except PackageNotFoundError:
        return None


def not_installed(module: str) -> str:
    """Returns which of our distributions a module of `worker` needs and is missing; empty if none is."""
    ours = _ours()
    part = "lab" if f"{module}.".startswith(f"{_LAB}.") else "worker"
    if ours is not None and (part == "worker" or (ours / part / "__init__.py").is_file()):
        return ""
    return f"{_PROJECT}-{part} is not installed: pip install ./wheels/{part} {_WHERE}"


def hidden(file: str) -> str:
    """Returns the message for a file that hides our package, with the remedy."""
    return (
        f"{file} is imported as {_PACKAGE!r} instead of the package of that name of {_PROJECT}: rename it, or keep its folder "
        "off sys.path (python -P, or PYTHONSAFEPATH=1)"
    )


def needs(error: ModuleNotFoundError, *, engine: bool) -> str | None:
    """Returns which package an import lacks, and what brings it; None if it is there, so that the error is another one.

    With `engine`, what was imported needs an engine, too.
    """
    name = (error.name or "").partition(".")[0]
    if not name or name in (_PACKAGE, __name__.partition(".")[0]) or _is_there(name):
        return None
    extras = [extra for extra in _extras(name) if extra not in _OURS] or _extras(name)
    if engine and installed_version("vllm") is None:
        more = [] if not extras or set(extras) & set(_ENGINES) else extras[:1]
        extras = [",".join([each, *more]) for each in _ENGINES]
    return f"{name} is not installed: {_install(name, extras)}"


def no_engine() -> str:
    """Returns how to get an engine."""
    return _install("vllm", _ENGINES)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return True


def _extras(name: str) -> list[str]:
    """The extras of this project that bring a module."""
    names = {distribution_of(item) for item in PACKAGES.get(name, (_DISTRIBUTIONS.get(name, name),))}
    try:
        extras: Sequence[str] = metadata(_PROJECT).get_all("Provides-Extra") or ()
        with parsing:  # the packaging library parses the texts in a marker as Python
            found = [need for text in requires(_PROJECT) or () if distribution_of((need := Requirement(text)).name) in names]
    except PackageNotFoundError:
        return []
    return [extra for extra in extras if any(need.marker and need.marker.evaluate({"extra": extra}) for need in found)]


def _install(name: str, extras: Sequence[str]) -> str:
    if not extras:
        return f"pip install {_DISTRIBUTIONS.get(name, name)}"
    others = f" (or [{'], ['.join(extras[1:])}])" if extras[1:] else ""
    return f"pip install '.[{extras[0]}]'{others} {_WHERE}"
