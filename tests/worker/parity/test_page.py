"""The page: all of the report is in it, nothing in it is obeyed, and it fetches nothing."""

from __future__ import annotations

import sys
from collections import Counter
from html.parser import HTMLParser

import pytest

from quirks_core.base.errors import UsageError
from worker.lab.parity.page import write_report
from worker.lab.parity.records import Report

pytest.importorskip("matplotlib", reason="the page needs matplotlib: pip install 'model-quirks[parity]'")
pytest.importorskip("jinja2", reason="the page needs jinja2: pip install 'model-quirks[parity]'")

_VOID = {"meta", "link", "br", "path", "use"}


class _Page(HTMLParser):
    """What a browser would make of the page: its text, its elements and whether they are closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.unclosed: list[str] = []
        self.wrong: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID and (not self.unclosed or self.unclosed.pop() != tag):
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.unclosed[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [values for name, values in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Writes a report and reads its page, once for each report."""
    known: dict[int, tuple[Report, _Page]] = {}

    def page(report: Report) -> _Page:
        if id(report) not in known:
            folder = tmp_path_factory.mktemp("page")
            write_report(report, folder)
            known[id(report)] = report, _Page((folder / "report.html").read_text(encoding="utf-8"))
        return known[id(report)][1]

    return page


def test_everything_that_was_found_is_in_the_page(faulty, page):
    text = page(faulty).text

    expected = [*faulty.settings, *faulty.active_quirks, *faulty.warnings, faulty.profile]
    expected += [f"{name} {version}" for name, version in faulty.versions.items()]
    for result in faulty.results:
        expected += [result.scenario, result.title, result.reason]
        expected += [part for verdict in result.verdicts for part in (verdict.threshold, verdict.metric, verdict.source)]
    expected += [part for step in faulty.steps for part in (step.setting, step.error)]
    for item in faulty.attributions:
        quirks = [part for quirk in item.quirks for part in (quirk.id, quirk.state, quirk.because, quirk.switch)]
        expected += [" ".join(item.skeleton.split()), *quirks]
    assert [part for part in expected if part not in text] == []


def test_the_verdict_comes_first_in_the_page(faulty, page):
    text = page(faulty).text

    order = ("Parity is broken in 4 of 9 scenarios", "Set engine.logprobs_mode to processed_logprobs", "What was run")
    assert sorted(order, key=text.index) == list(order)


def test_every_metric_has_a_row_with_a_coloured_value_for_every_measured_scenario_that_has_a_limit(faulty, page):
    coloured = [name for values in page(faulty).all("td") if " h" in (name := values.get("class") or "")]

    judged = {verdict.metric for result in faulty.measured for verdict in result.verdicts}
    failed = {(result.scenario, item.metric) for result in faulty.measured for item in result.verdicts if item.level == "fail"}
    assert len(coloured) == len(judged) * len(faulty.measured)
    assert sum("fail" in name for name in coloured) == len(failed)


def test_only_scenarios_with_findings_are_open(faulty, sound, page):
    def opened(report: Report) -> list[str]:
        pairs = zip(report.results, page(report).all("details"), strict=True)
        return [result.scenario for result, values in pairs if "open" in values]

    assert opened(faulty) == ["temperature", "top-p-top-k", "in-flight-kept", "sleep-wake"]
    assert opened(sound) == ["cold-start"]


def test_every_measured_scenario_has_its_figure_beside_the_overview(faulty, page):
    assert len(page(faulty).all("svg")) == 1 + len(faulty.measured)


def test_every_step_of_a_long_ablation_has_a_row(crowded, page):
    rows = Counter(values.get("class") for values in page(crowded).all("tr") if values.get("class"))

    assert rows == {"restores": 2, "worsens": 1, "none": 16, "error": 1}


@pytest.mark.parametrize("name", ["faulty", "sound", "crowded", "hostile"])
def test_the_page_is_well_formed_with_unique_names(name, request, page):
    found = page(request.getfixturevalue(name))

    assert (found.wrong, found.unclosed) == ([], [])
    ids = Counter(values["id"] for _, values in found.elements if values.get("id"))
    assert [key for key, count in ids.items() if count > 1] == []
    assert {link[1:] for values in found.all("a") if (link := values["href"] or "").startswith("#")} <= set(ids)


@pytest.mark.parametrize("name", ["faulty", "hostile"])
def test_the_page_neither_fetches_nor_runs_anything(name, request, page):
    found = page(request.getfixturevalue(name))

    assert not {tag for tag, _ in found.elements} & {"script", "img", "iframe", "object", "embed", "base", "form", "image"}
    for tag, values in found.elements:
        address = values.get("src") or values.get("href") or "#"
        assert tag == "a" or address.startswith(("#", "data:")), (tag, values)
        assert not [key for key in values if key.startswith("on")]
    assert "@import" not in found.source
    assert "url(http" not in found.source


def test_markup_is_shown_without_being_obeyed(hostile, page):
    found = page(hostile)

    assert "<script>alert('x')</script>&\"\\x1b[31m[red]" in found.text
    assert "<script" not in found.source
    assert "\x1b" not in found.source


def test_figures_that_are_not_finite_are_shown_as_such(hostile, page):
    found = page(hostile)

    assert all(figure in found.text for figure in ("nan✗", "inf✗", "-inf"))


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("javascript:alert(1)", []),
        ("data:text/html,x", []),
        ('https://x.test/"onclick="x', ["https://x.test/"]),
        ("seen in https://x.test/a.md, and there", ["https://x.test/a.md"]),
    ],
)
def test_only_the_web_address_in_a_source_becomes_a_link(text, links, sound, page):
    verdict = sound.results[0].verdicts[0].model_copy(update={"source": text})
    result = sound.results[0].model_copy(update={"verdicts": (verdict,)})

    found = page(sound.model_copy(update={"results": (result,)}))

    outside = [values for values in found.all("a") if not (values["href"] or "").startswith("#")]
    assert outside == [{"href": link} for link in links]
    assert text in found.text


@pytest.mark.parametrize("fields", [{"steps": (), "attributions": (), "versions": {}, "settings": {}}, {}])
def test_a_run_without_results_has_a_page(make_report, page, fields):
    text = page(make_report(results=(), active_quirks=(), **fields)).text

    assert "Nothing that counts was measured" in text
    assert "No scenario was measured." in text


def test_a_report_from_json_gives_the_same_page(hostile, page):
    again = Report.model_validate_json(hostile.model_dump_json())

    assert page(again).source == page(hostile).source


def test_a_missing_jinja_is_a_usage_error_that_says_what_to_install(sound, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)

    with pytest.raises(UsageError, match=r"pip install 'model-quirks\[parity\]'"):
        write_report(sound, tmp_path)
    assert list(tmp_path.iterdir()) == []
