"""The site as a reader gets it, built without warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from programs import run_python

_ROOT = Path(__file__).resolve().parents[2]
_CATALOGUE = _ROOT / "docs" / "catalogue.md"


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    pytest.importorskip("sphinx", reason="the site needs Sphinx: pip install 'model-quirks[docs]'")
    folder, trees = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("doctrees")
    options = ("-W", "--keep-going", "-q", "-b", "html", "-d", trees)
    done = run_python("-m", "sphinx", *options, "docs", folder, cwd=_ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_has_every_page(site_folder: Path):
    every_id = set(re.findall(r"^\| \[([^\]]+)\]\(\.\./quirks_plugins/", _CATALOGUE.read_text("utf-8"), re.MULTILINE))
    built = {page.relative_to(site_folder).with_suffix("").as_posix() for page in site_folder.rglob("*.html")}

    assert every_id
    assert {f"quirks/{name}" for name in every_id} <= built
    tables = (site_folder / "catalogue.html").read_text("utf-8").partition('id="all-quirks"')[2]
    assert set(re.findall(r'href="quirks/([\w-]+).html"', tables)) == every_id
    assert {page.stem for page in _CATALOGUE.parent.glob("*.md")} <= built
    assert {"lookup/cli", "lookup/slots", "families/gemma4", "families/qwen3-moe"} <= built


def test_every_family_is_linked_from_the_table_of_versions(site_folder: Path):
    linked = set(re.findall(r'href="families/([\w-]+).html"', (site_folder / "versions.html").read_text("utf-8")))

    assert linked == {page.stem for page in (site_folder / "families").glob("*.html")}


def test_a_link_to_source_leads_to_the_page_made_from_it(site_folder: Path):
    text = (site_folder / "writing-a-quirk.html").read_text("utf-8")

    assert {"lookup/slots.html", "lookup/slots.html#facts", "lookup/slots.html#flags"} <= set(
        re.findall(r'href="([^"]+)"', text)
    )
