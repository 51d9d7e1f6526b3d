"""How the site is built: ``sphinx-build -W --keep-going -b html docs build/site``.

Every page is plain Markdown that reads as well on GitHub; what only the site needs (the menu, the
quirks' pages and the links to them) is added here.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

_DOCS = Path(__file__).resolve().parent
#: Links that lead to source on GitHub, and to the page written from it on the site.
_LOOKUP = {
    "quirks_core/configuration/slots.py": "lookup/slots.md",
    "quirks_core/facts/fact_table.py": "lookup/slots.md#facts",
    "quirks_core/declaration/flags.py": "lookup/slots.md#flags",
    "quirks_core/cli/main.py": "lookup/cli.md",
}
#: A link to a declaration; the file is named after the quirk's id, or has several, whose ids are the links' texts.
_DECLARATION = re.compile(r"\[([^\]]*)\]\((?:\.\./)+quirks_plugins/\w+/(\w+)\.py\)")

project = "model-quirks"
author = "the model-quirks authors"
release = version = tomllib.loads((_DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_ext", "_static", "upstream"]  # drafts for others, read on GitHub
myst_heading_anchors = 4  # the anchors that GitHub gives headings

html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_js_files = ["catalogue.js"]
html_copy_source = False
html_show_search_summary = False  # it needs a server, and the search works without one
html_show_copyright = False
html_show_sphinx = False

#: The menu: page by page, which pages stand below it.
_MENU = {
    "index": {
        "Before you install": ("install", "costs", "production", "versions"),
        "I train": ("trainers", "policy", "parity", "worker", "dp-ep", "send-weights"),
        "I serve": ("serve", "server", "upgrading"),
        "I maintain quirks": ("tutorial", "writing-a-quirk", "kit", "architecture"),
        "Look up": ("symptoms", "catalogue", "lookup/cli", "lookup/slots", "reference", "stability", "why"),
        "Results": ("results/*",),
    },
}
#: A link to a draft for others, which is read on GitHub.
_DRAFT = re.compile(r"\[([^\]]*)\]\((?:\.\./)*upstream/[\w-]+\.md\)")
#: The name of a model in the table of versions.
_FAMILY = re.compile(r"`([\w.]+)`(?= [✓✗]|, | \|)")


def _page(text: str, file: str) -> str:
    """Returns the page of a quirk by a link's text, if that is its id, or by its file."""
    name = text.strip("`")
    return name if (_DOCS / "quirks" / f"{name}.md").is_file() else file.replace("_", "-")


def _add_menu(_app: Sphinx, page: str, text: list[str]) -> None:
    for caption, entries in _MENU.get(page, {}).items():
        options = [":hidden:", ":glob:", f":caption: {caption}"]
        text[0] += "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


def _add_metadata(_app: Sphinx, page: str, text: list[str]) -> None:
    """Leaves results out of the search, and the many pages of quirks and models out of the menu: tables link them."""
    if page.startswith("results/"):
        text[0] = f"---\nnosearch: true\n---\n\n{text[0]}"
    if page.startswith(("quirks/", "families/")):
        text[0] = f"---\norphan: true\n---\n\n{text[0]}"


def _write_pages(_app: Sphinx) -> None:
    sys.path.insert(0, str(_DOCS / "_ext"))
    from pages import BUILT, site_pages, write

    pages = site_pages()
    write(pages)
    for page in (page for folder in BUILT for page in (_DOCS / folder).glob("*.md")):
        if page.relative_to(_DOCS).as_posix() not in pages:
            page.unlink()


def _link_written_pages(_app: Sphinx, page: str, text: list[str]) -> None:
    up = "../" * page.count("/")
    for source, target in _LOOKUP.items():
        text[0] = text[0].replace(f"]({up}../{source})", f"]({up}{target})")
    text[0] = _DRAFT.sub(r"\1 (`docs/upstream`)", text[0])
    if not page.startswith("quirks/"):
        text[0] = _DECLARATION.sub(lambda found: f"[{found[1]}]({up}quirks/{_page(*found.groups())}.md)", text[0])
    if page == "versions":
        table = "\n".join(line for line in text[0].splitlines() if line.startswith("| "))
        linked = _FAMILY.sub(lambda found: f"[`{found[1]}`](families/{found[1].lower().replace('_', '-')}.md)", table)
        for line, with_links in zip(table.splitlines(), linked.splitlines(), strict=True):
            if "model_type" not in line:
                text[0] = text[0].replace(line, with_links)


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the pages that only the site has, adds the menu, and links to those pages instead of to source."""
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _add_menu)
    app.connect("source-read", _add_metadata)
    app.connect("source-read", _link_written_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
