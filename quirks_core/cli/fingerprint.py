"""``quirks fingerprint``: prints what a patch must expect of its target, and keeps a distribution's data file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from quirks_core.base.errors import UsageError
from quirks_core.cli.command import Command, print_json
from quirks_core.declaration import data_file
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.terminal import Screen, line
from quirks_core.source.vllm_source import INSTALLED, VllmSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the target, or the distribution whose data file is to be written."""
    parser.add_argument("target", nargs="?", metavar="TARGET", help="package.module:Class.attribute or package.module:function")
    parser.add_argument("--write", metavar="DIST", help="bring the data file (model_quirks.json) of a distribution up to date")


def run_fingerprint(options: argparse.Namespace) -> int:
    """Prints the fingerprint of the installed source, ready to be pasted into ``expects``; or writes a data file.

    Raises:
        UsageError: The target is not of that form, or the installed packages have no such name.
    """
    if bool(options.target) is bool(options.write):
        raise UsageError("give a TARGET, or --write DIST")
    if options.write:
        path, changed = bring_up_to_date(Registry.load(strict=True), options.write)
        if options.json:
            print_json({"file": str(path), "changed": changed})
        else:
            show_written(path, changed)
        return 0
    module, colon, path = options.target.partition(":")
    if not (module and colon and path):
        raise UsageError(f"{options.target!r} is not of the form package.module:Class.attribute")
    if (found := INSTALLED.fingerprint(options.target)) is None:
        raise UsageError(INSTALLED.missing(options.target))
    if options.json:
        print_json({"target": options.target, "fingerprint": found})
    else:
        print(f'expects=("{found}",),')
    return 0


def bring_up_to_date(
    registry: Registry, distribution: str, versions: Mapping[str, str] | None = None, source: VllmSource = INSTALLED
) -> tuple[Path, bool]:
    """Writes the data file of a distribution from the installed source, or from another one with its ``versions``.

    Returns:
        The data file, and whether it changed.

    Raises:
        UsageError: There is no such distribution, or its quirks lie in several packages.
    """
    items = [one for one in registry.loaded if canonicalize_name(one.distribution) == canonicalize_name(distribution)]
    paths = {data_file.path_for(item.quirk) for item in items}
    if not items:
        raise UsageError(f"no distribution {distribution!r} with quirks is installed")
    if len(paths) > 1 or (path := paths.pop()) is None:
        raise UsageError(f"the quirks of {distribution} lie in several packages, or in none; put them in one package")
    known = data_file.read_for(items[0].quirk)
    data = data_file.updated(known, tuple(item.quirk for item in items), items[0].version, versions, source)
    if data != known:
        data_file.write(path, data)
    return path, data != known


def show_written(path: Path, changed: bool) -> None:
    """Prints whether a data file changed."""
    Screen().say(f"{line(path)}: {'written' if changed else 'up to date'}")


COMMAND = Command(
    "print the fingerprint of a patch's target, or keep a distribution's data file", run_fingerprint, add_arguments
)
