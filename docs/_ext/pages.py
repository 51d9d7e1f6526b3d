"""The pages written from code and records.

``python docs/_ext/pages.py`` writes the committed ones (catalogue, versions, evidence); ``docs/conf.py`` writes the others
while the site is built: a page for each quirk and each family of models, slots, and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import evidence_page
from catalogue_page import catalogue
from family_pages import Planner, families
from lookup_pages import command_line, slots
from page_text import page
from quirk_pages import quirk_page

from quirks_core.base.errors import DeclarationError
from quirks_core.cli.main import make_parser
from quirks_core.declaration.flags import BUILT_IN
from quirks_core.plan.loaded import Loaded
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry

#: The documentation's folder.
FOLDER = Path(__file__).resolve().parents[1]
#: The folders of the pages that are written while the site is built.
BUILT = ("quirks", "families", "lookup")


def committed_pages() -> dict[str, str]:
    """Returns the text of the committed pages, by name."""
    loaded = _built_in()
    return {
        "catalogue.md": catalogue(loaded),
        "results/evidence.md": page("Evidence", *evidence_page.blocks(loaded)),
        "versions.md": Planner(loaded).versions_page(families(loaded)),
    }


def quirk_pages() -> dict[str, str]:
    """Returns the text of the quirks' pages, by name."""
    return {f"{item.quirk.id}.md": quirk_page(item) for item in _built_in()}


def site_pages() -> dict[str, str]:
    """Returns the text of the pages that only the site has, by name."""
    loaded = _built_in()
    planner = Planner(loaded)
    return {
        **{f"quirks/{name}": text for name, text in quirk_pages().items()},
        **{f"families/{family.file}": planner.family_page(family) for family in families(loaded)},
        "lookup/cli.md": command_line(make_parser()),
        "lookup/slots.md": slots(),
    }


def write(pages: Mapping[str, str], folder: Path = FOLDER) -> list[Path]:
    """Writes the pages that are missing or differ; returns their files."""
    stale = [name for name, text in pages.items() if not (file := folder / name).is_file() or file.read_text("utf-8") != text]
    for name in stale:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(pages[name], encoding="utf-8")
    return [folder / name for name in stale]


@cache
def _built_in() -> Sequence[Loaded]:
    registry = Registry.load([item for item in discover() if item.distribution == BUILT_IN])
    if registry.broken:
        raise DeclarationError("\n".join(map(str, registry.broken)))
    return registry.loaded


if __name__ == "__main__":
    for written in write(committed_pages()):
        print(f"wrote {written}")
