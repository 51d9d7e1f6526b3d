"""The site as a reader gets it, built without warnings."""

from __future__ import annotations

import re
from pathlib import Path

_CATALOGUE = Path(__file__).resolve().parents[2] / "docs" / "catalogue.md"


def test_the_site_has_every_page(site_folder: Path):
    every_id = set(re.findall(r"^\| \[([^\]]+)\]\(\.\./quirks_plugins/", _CATALOGUE.read_text("utf-8"), re.MULTILINE))
    built = {page.relative_to(site_folder).with_suffix("").as_posix() for page in site_folder.rglob("*.html")}

    assert every_id
    assert {f"quirks/{name}" for name in every_id} <= built
    table = (site_folder / "catalogue.html").read_text("utf-8").partition('id="catalogue"')[2].partition("</table>")[0]
    assert set(re.findall(r'href="quirks/([\w-]+).html"', table)) == every_id
    assert {page.stem for page in _CATALOGUE.parent.glob("*.md")} <= built
