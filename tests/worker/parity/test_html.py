"""The page: all of the report is in it, nothing in it is obeyed, and it fetches nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from quirks_core.errors import UsageError
from worker.parity.html import write_html
from worker.parity.records import Report

pytest.importorskip("matplotlib", reason="the page needs matplotlib: pip install 'model-quirks[parity]'")
pytest.importorskip("jinja2", reason="the page needs jinja2: pip install 'model-quirks[parity]'")

_VOID = {"meta", "link", "br", "path", "use"}


class _Page(HTMLParser):
    """What a browser would make of the page: its text, its elements and whether they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.unclosed: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self.unclosed or self.unclosed.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.unclosed[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Report], str]:
    """Writes a report as a page, once for each report, and returns the file's text."""
    known: dict[int, tuple[Report, str]] = {}

    def written(report: Report) -> str:
        if id(report) not in known:
            file = tmp_path_factory.mktemp("page") / "report.html"
            write_html(report, file)
            known[id(report)] = report, file.read_text(encoding="utf-8")
        return known[id(report)][1]

    return written


@pytest.fixture
def page(written: Callable[[Report], str]) -> Callable[[Report], _Page]:
    """Writes a report as a page and reads it."""
    return lambda report: _Page(written(report))


def test_everything_that_was_found_is_in_the_page(faulty, page):
    text = page(faulty).text

    for result in faulty.results:
        assert result.scenario in text
        assert result.title in text
        assert result.reason in text
        for verdict in result.verdicts:
            assert verdict.threshold in text
            assert verdict.metric in text
            assert verdict.source in text
    for name, version in faulty.versions.items():
        assert f"{name} {version}" in text
    assert all(name in text for name in (*faulty.settings, *faulty.active_quirks, *faulty.warnings, faulty.profile))
    for step in faulty.ladder:
        assert step.setting in text
        assert step.error in text
    for item in faulty.attributions:
        assert " ".join(item.skeleton.split()) in text
        assert all(part in text for quirk in item.quirks for part in (quirk.id, quirk.state, quirk.because, quirk.switch))


def test_it_begins_with_the_verdict_and_what_to_do(faulty, page):
    text = page(faulty).text

    verdict, advice = (
        text.index("Parity is broken in 4 of 9 scenarios"),
        text.index("Set engine.logprobs_mode to processed_logprobs"),
    )
    assert verdict < advice < text.index("What was run")


def test_every_metric_has_a_row_with_a_value_for_every_measured_scenario(faulty, page):
    cells = [values for tag, values in page(faulty).elements if tag == "td" and (values.get("class") or "").startswith("num")]
    measured = [result for result in faulty.results if result.status == "measured"]

    coloured = [values["class"] for values in cells if " h" in (values["class"] or "")]
    judged = {verdict.metric for result in measured for verdict in result.verdicts}
    assert len(coloured) == len(judged) * len(measured)
    assert sum("fail" in name for name in coloured) == sum(
        len({verdict.metric for verdict in result.verdicts if verdict.level == "fail"}) for result in measured
    )


def test_scenarios_with_findings_are_open_and_sound_ones_are_not(faulty, sound, page):
    def opened(report: Report) -> list[str]:
        details = [values for tag, values in page(report).elements if tag == "details"]
        return [result.scenario for result, values in zip(report.results, details, strict=True) if "open" in values]

    assert opened(faulty) == ["temperature", "top-p-top-k", "in-flight-kept", "sleep-wake"]
    assert opened(sound) == ["cold-start"]


def test_every_measured_scenario_has_its_three_plots(faulty, page):
    plots = [tag for tag, _ in page(faulty).elements if tag == "svg"]

    assert len(plots) == 3 * sum(result.status == "measured" for result in faulty.results)


def test_every_step_of_a_long_ladder_has_a_row_and_a_bar(crowded, page):
    elements = page(crowded).elements

    tracks = [values for tag, values in elements if tag == "div" and values.get("class") == "track"]
    rows = Counter(values.get("class") for tag, values in elements if tag == "tr" and values.get("class"))
    assert rows == {"restores": 2, "worsens": 1, "none": 16, "error": 1}
    assert len(tracks) == 19


def test_sources_are_links(faulty, page):
    links = {values["href"] for tag, values in page(faulty).elements if tag == "a"}

    sources = " ".join(verdict.source for result in faulty.results for verdict in result.verdicts).split()
    addresses = {word for word in sources if word.startswith("https://")}
    assert len(addresses) > 3
    assert addresses <= links


@pytest.mark.parametrize("name", ["faulty", "sound", "crowded", "hostile"])
def test_the_page_is_well_formed_and_its_names_are_unique(name, request, page):
    found = page(request.getfixturevalue(name))

    assert found.wrong == []
    assert found.unclosed == []
    ids = Counter(values["id"] for _, values in found.elements if values.get("id"))
    assert [key for key, count in ids.items() if count > 1] == []
    targets = {
        (values["href"] or "")[1:] for tag, values in found.elements if tag == "a" and (values["href"] or "").startswith("#")
    }
    assert targets <= set(ids)


@pytest.mark.parametrize("name", ["faulty", "hostile"])
def test_the_page_fetches_and_runs_nothing(name, request, page, written):
    found = page(request.getfixturevalue(name))

    assert not {tag for tag, _ in found.elements} & {"script", "img", "iframe", "object", "embed", "base", "form", "image"}
    for tag, values in found.elements:
        address = values.get("src") or values.get("href") or values.get("xlink:href") or "#"
        assert tag == "a" or address.startswith(("#", "data:")), (tag, values)
        assert not [key for key in values if key.startswith("on")]
    text = written(request.getfixturevalue(name))
    assert "@import" not in text
    assert "url(http" not in text


def test_markup_is_shown_and_not_obeyed(hostile, page, written):
    found = page(hostile)

    assert "<script>alert('x')</script>&\"\\x1b[31m[red]" in found.text
    text = written(hostile)
    assert "<script" not in text
    assert "\x1b" not in text


def test_figures_that_are_not_finite_are_shown_as_such(hostile, page):
    text = page(hostile).text

    assert "nan✗" in text
    assert "inf✗" in text
    assert "-inf" in text


@pytest.mark.parametrize("text", ["javascript:alert(1)", "data:text/html,x", 'https://x.test/"onclick="x'])
def test_only_web_addresses_become_links_and_end_at_what_no_address_has(text, sound, page):
    verdict = sound.results[0].verdicts[0].model_copy(update={"source": text})
    result = sound.results[0].model_copy(update={"verdicts": (verdict,)})

    found = page(sound.model_copy(update={"results": (result,)}))

    links = [values for tag, values in found.elements if tag == "a" and not (values["href"] or "").startswith("#")]
    assert [values["href"] for values in links] == (["https://x.test/"] if text.startswith("https") else [])
    assert all(set(values) == {"href"} for values in links)
    assert text in found.text


def test_the_same_report_has_the_same_bytes(sound, written, tmp_path):
    write_html(sound, tmp_path / "a.html")

    assert (tmp_path / "a.html").read_bytes() == written(sound).encode()


@pytest.mark.parametrize(
    "fields",
    [{"results": ()}, {"results": (), "ladder": (), "attributions": (), "versions": {}, "settings": {}, "active_quirks": ()}],
)
def test_a_run_without_results_has_a_page(make_report, page, fields):
    text = page(make_report(**fields)).text

    assert "Nothing that counts was measured" in text
    assert "No scenario was measured." in text


def test_a_report_from_json_gives_the_same_page(hostile, written):
    again = Report.model_validate_json(hostile.model_dump_json())

    assert written(again) == written(hostile)


@pytest.mark.parametrize("name", ["jinja2", "matplotlib"])
def test_what_is_missing_is_a_usage_error_that_says_what_to_install(name, sound, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(UsageError, match=r"pip install 'model-quirks\[parity\]'"):
        write_html(sound, tmp_path / "a.html")
