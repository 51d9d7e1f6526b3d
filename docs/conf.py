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
#: A link to a declaration; the file is named after the quirk's id, or has several, whose ids are the links' texts.
_DECLARATION = re.compile(r"\[([^\]]*)\]\((?:\.\./)+quirks_plugins/\w+/(\w+)\.py\)")

project = "model-quirks"
author = "the model-quirks authors"
release = version = tomllib.loads((_DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_ext", "_static"]
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
        "Start": ("why", "tutorial", "writing-a-quirk", "kit", "hooks"),
        "Use": (
            *("install", "serve", "own-engine", "send-weights", "trainers", "worker", "trainer"),
            *("dp-ep", "parity", "evaluation", "server", "operations", "cli"),
        ),
        "Look up": ("symptoms", "catalogue", "slots", "architecture", "reference", "glossary"),
    },
    "catalogue": {"": ("quirks/*", "upstream/*")},
}
_NAMED = {"index", *(page for entries in _MENU["index"].values() for page in entries)}
_MENU["index"]["More"] = tuple(sorted({page.stem for page in _DOCS.glob("*.md")} - _NAMED))
_MENU["index"]["Results"] = ("results/*",)


def _page(text: str, file: str) -> str:
    """Returns the page of a quirk by a link's text, if that is its id, or by its file."""
    name = text.strip("`")
    return name if (_DOCS / "quirks" / f"{name}.md").is_file() else file.replace("_", "-")


def _add_menu(_app: Sphinx, page: str, text: list[str]) -> None:
    for caption, entries in _MENU.get(page, {}).items():
        options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
        text[0] += "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


def _leave_out_of_search(_app: Sphinx, page: str, text: list[str]) -> None:
    if page.startswith("results/"):
        text[0] = f"---\nnosearch: true\n---\n\n{text[0]}"


def _write_quirk_pages(_app: Sphinx) -> None:
    sys.path.insert(0, str(_DOCS / "_ext"))
    from pages import quirk_pages, write

    pages = quirk_pages()
    write(pages, _DOCS / "quirks")
    for page in (_DOCS / "quirks").glob("*.md"):
        if page.name not in pages:
            page.unlink()


def _link_quirk_pages(_app: Sphinx, page: str, text: list[str]) -> None:
    if not page.startswith("quirks/"):
        folder = "../" * page.count("/") + "quirks"
        text[0] = _DECLARATION.sub(lambda found: f"[{found[1]}]({folder}/{_page(*found.groups())}.md)", text[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the quirks' pages, adds the menu, and links quirks to their pages instead of their declarations."""
    app.connect("builder-inited", _write_quirk_pages)
    app.connect("source-read", _add_menu)
    app.connect("source-read", _leave_out_of_search)
    app.connect("source-read", _link_quirk_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
