"""``quirks docs``: writes the pages that come from the code, or says which of them are stale."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from quirks_core.base.errors import DeclarationError, UsageError
from quirks_core.cli.command import Command
from quirks_core.cli.pages import NOTE, render
from quirks_core.cli.screen import Screen, line
from quirks_core.declaration.flags import BUILT_IN
from quirks_core.plugins.discovery import discover
from quirks_core.plugins.registry import Registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `run_docs` needs."""
    parser.add_argument("--folder", metavar="FOLDER", default="docs", help="the documentation's folder (default: docs)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")


def run_docs(options: argparse.Namespace) -> int:
    """Writes the pages into ``--folder``; with ``--check`` writes nothing, and 1 if one is stale.

    Raises:
        UsageError: The folder does not exist.
        DeclarationError: A built-in quirk is broken.
    """
    folder = Path(options.folder)
    if not folder.is_dir():
        raise UsageError(f"--folder {folder}: no such folder; run this in the source tree, or name the documentation's folder")
    stale = stale_pages(folder, pages())
    if not options.check:
        _write(folder, stale)
    if options.json:
        outcome = {"folder": str(folder), "stale" if options.check else "written": sorted(stale)}
        print(json.dumps(outcome, indent=2, sort_keys=True))
    else:
        _report(folder, stale, check=options.check)
    return 1 if options.check and stale else 0


def pages() -> dict[str, str]:
    """Returns the text of every page about the built-in quirks, by path relative to the documentation's folder.

    Raises:
        DeclarationError: A built-in quirk is broken.
    """
    from quirks_core.cli.main import make_parser  # it imports this module

    registry = Registry.load([item for item in discover() if item.distribution == BUILT_IN])
    if registry.broken:
        raise DeclarationError("\n".join(map(str, registry.broken)))
    return render(registry.loaded, make_parser())


def stale_pages(folder: Path, current: Mapping[str, str]) -> dict[str, str | None]:
    """Compares a folder with the text that its pages should have.

    Args:
        folder: The documentation's folder.
        current: The right text by path.

    Returns:
        The right text of every page that is missing or differs, and None for a page of a quirk that no longer exists.
    """
    stale: dict[str, str | None] = {
        name: text for name, text in current.items() if not (folder / name).is_file() or _read(folder / name) != text
    }
    for page in sorted((folder / "quirks").glob("*.md")):
        name = page.relative_to(folder).as_posix()
        if name not in current and _read(page).startswith(NOTE):
            stale[name] = None
    return stale


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _write(folder: Path, stale: Mapping[str, str | None]) -> None:
    (folder / "quirks").mkdir(exist_ok=True)
    for name, text in stale.items():
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text, encoding="utf-8")


def _report(folder: Path, stale: Mapping[str, str | None], *, check: bool) -> None:
    console = Screen()
    for name, text in sorted(stale.items()):
        word = "delete" if text is None else "stale" if check else "wrote"
        console.say(f"{'deleted' if text is None and not check else word} {line(folder / name)}")
    if not stale:
        console.say(f"every page in {line(folder)} is up to date")
    elif check:
        console.say("run [bold]quirks docs[/] and commit what it writes")


COMMAND = Command("write the documentation's pages that come from the code", run_docs, add_arguments)
