"""The site as a reader sees it: built without warnings, opened in a real browser."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

_CATALOGUE = Path(__file__).resolve().parents[2] / "docs" / "catalogue.md"
_WAIT_S = 20


def _ids(text: str) -> set[str]:
    return set(re.findall(r"^\| \[([^\]]+)\]\(\.\./quirks_plugins/", text, re.MULTILINE))


@pytest.fixture(scope="module")
def every_id() -> set[str]:
    return _ids(_CATALOGUE.read_text(encoding="utf-8"))


@pytest.fixture
def catalogue(browser: Any, site_url: str) -> Any:
    return _open(browser, f"{site_url}/catalogue.html")


def _open(browser: Any, address: str) -> Any:
    """Opens the catalogue and waits until it can be filtered."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get("about:blank")  # a change of the hash alone would not load the page again
    browser.get(address)
    WebDriverWait(browser, _WAIT_S).until(lambda page: page.find_elements("css selector", "#catalogue output") and _count(page))
    return browser


def _visible(browser: Any) -> set[str]:
    rows = browser.find_elements("css selector", "#catalogue tbody tr")
    return {row.find_element("css selector", "td a").text for row in rows if row.is_displayed()}


def _search(browser: Any) -> Any:
    return browser.find_element("css selector", "#catalogue input[type=search]")


def _choose(browser: Any, name: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("css selector", f"#catalogue select[name={name}]")).select_by_visible_text(value)


def _count(browser: Any) -> str:
    return browser.find_element("css selector", "#catalogue output").text


def _colours(png: bytes) -> int:
    """Counts the distinct bytes of an image's scanlines: a blank page has one colour and hardly any."""
    data, position = b"", 8
    while position < len(png):
        (length,) = struct.unpack(">I", png[position : position + 4])
        if png[position + 4 : position + 8] == b"IDAT":
            data += png[position + 8 : position + 8 + length]
        position += 12 + length
    return len(set(zlib.decompress(data)))


def test_the_site_has_every_page(site_folder: Path, every_id: set[str]):
    built = {page.relative_to(site_folder).with_suffix("").as_posix() for page in site_folder.rglob("*.html")}

    assert every_id
    assert {f"quirks/{name}" for name in every_id} <= built
    table = (site_folder / "catalogue.html").read_text("utf-8").partition('id="catalogue"')[2].partition("</table>")[0]
    assert set(re.findall(r'href="quirks/([\w-]+).html"', table)) == every_id
    assert {page.stem for page in _CATALOGUE.parent.glob("*.md")} <= built


def test_the_catalogue_shows_every_quirk_until_it_is_filtered(catalogue: Any, every_id: set[str]):
    assert _visible(catalogue) == every_id
    assert _count(catalogue) == f"{len(every_id)} of {len(every_id)} quirks"


def test_typing_leaves_the_rows_that_have_every_word(catalogue: Any, every_id: set[str]):
    _search(catalogue).send_keys("GEMMA refit")

    rows = _CATALOGUE.read_text(encoding="utf-8").splitlines()
    wanted = {name for row in rows if "gemma" in row.lower() and "refit" in row.lower() for name in _ids(row)}
    assert {"gemma-normalizer-dummy-load", "gemma4-layer-scalar"} <= wanted < every_id
    assert _visible(catalogue) == wanted
    assert _count(catalogue) == f"{len(wanted)} of {len(every_id)} quirks"


def test_a_chosen_model_leaves_only_rows_that_may_concern_it(catalogue: Any, every_id: set[str]):
    _choose(catalogue, "model", "apertus")

    shown = _visible(catalogue)
    assert {"apertus-xielu-buffers", "unread-environment"} <= shown < every_id
    assert not {"gemma-normalizer-dummy-load", "gemma4-layer-scalar", "cp-gemma3"} & shown


@pytest.mark.parametrize(
    ("name", "value", "inside", "outside"),
    [
        ("flag", "load_format", "gemma-normalizer-dummy-load", "v1-runtime"),
        ("severity", "noise", "unread-environment", "cp-gemma3"),
        ("status", "dormant", "gemma-normalizer-dummy-load", "gemma4-layer-scalar"),
    ],
)
def test_a_chosen_value_leaves_the_rows_that_have_it(catalogue: Any, name: str, value: str, inside: str, outside: str):
    _choose(catalogue, name, value)

    shown = _visible(catalogue)
    assert inside in shown
    assert outside not in shown


def test_filters_add_up_until_they_are_reset(catalogue: Any, every_id: set[str]):
    _choose(catalogue, "flag", "load_format")
    _choose(catalogue, "status", "active")
    assert "gemma-normalizer-dummy-load" not in _visible(catalogue)

    catalogue.find_element("css selector", "#catalogue button[type=reset]").click()

    assert _visible(catalogue) == every_id
    assert catalogue.current_url.rstrip("#").endswith("catalogue.html")


def test_the_address_keeps_the_filter(catalogue: Any):
    every_id = _visible(catalogue)
    _search(catalogue).send_keys("refit")
    _choose(catalogue, "flag", "weight_sync")
    address, shown = catalogue.current_url, _visible(catalogue)

    _open(catalogue, address)

    assert address.endswith("#text=refit&flag=weight_sync")
    assert _visible(catalogue) == shown
    assert {"apertus-xielu-buffers", "gemma4-layer-scalar"} <= shown < every_id


def test_the_catalogue_works_without_a_server(browser: Any, site_folder: Path):
    _open(browser, (site_folder / "catalogue.html").as_uri())

    _search(browser).send_keys("layer_scalar")

    assert _visible(browser) == {"gemma4-layer-scalar"}
    assert browser.current_url.endswith("#text=layer_scalar")


def test_every_control_has_a_label(catalogue: Any):
    controls = catalogue.find_elements("css selector", "#catalogue :is(input, select)")

    assert [control.accessible_name for control in controls] == [
        "Search", "Kind", "Model", "Flag", "Severity", "Status", "Evidence",
    ]  # fmt: skip


def test_filtering_changes_the_picture(catalogue: Any, tmp_path: Path):
    before = catalogue.get_screenshot_as_png()
    _search(catalogue).send_keys("gemma")
    after = catalogue.get_screenshot_as_png()

    (tmp_path / "before.png").write_bytes(before)
    (tmp_path / "after.png").write_bytes(after)
    assert before != after
    assert min(_colours(before), _colours(after)) > 30


def test_the_browser_complains_about_nothing(catalogue: Any):
    assert catalogue.get_log("browser") == []


@pytest.mark.parametrize("served", [True, False], ids=["served", "file"])
def test_the_sites_search_finds_a_quirk(browser: Any, site_url: str, site_folder: Path, served: bool):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{site_url if served else site_folder.as_uri()}/search.html?q=layer_scalar")

    def found(page: Any) -> bool:  # the results come one by one
        links = page.find_elements("css selector", "#search-results li a")
        return any("quirks/gemma4-layer-scalar.html" in link.get_attribute("href") for link in links)

    assert WebDriverWait(browser, _WAIT_S).until(found)
