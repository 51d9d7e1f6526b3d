"""The report: in 80 columns and without colours everything is there; in the page all of it, and nothing in it is obeyed."""

from __future__ import annotations

import html
import re

import pytest

from worker.lab.parity.records import Report
from worker.lab.parity.report import show_report, write_report
from worker.lab.parity.summary import crossed


@pytest.fixture
def shown(screened):
    """Returns what a terminal gets of a report."""

    def show(report: Report, **how: object) -> str:
        return screened(lambda screen: show_report(screen, report), **how)

    return show


def test_every_scenario_is_a_row_with_its_result(faulty, shown):
    lines = shown(faulty).splitlines()

    for result in faulty.results:
        (row,) = (line.split() for line in lines if line.startswith(f"{result.scenario} "))
        expected = result.status if result.status != "measured" else result.level if result.gates else f"({result.level})"
        assert row[1] == expected


def test_a_scenario_that_is_not_sound_gives_its_reason(faulty, shown):
    text = shown(faulty)

    assert "data-parallel: skipped: engine.data_parallel_size is 1\n" in text
    assert "sleep-wake: failed: EngineDiedError: signal 9\n" in text
    assert "top-p-top-k: fail: max_abs_delta 0.0139, limit ≤ 0.001 (float32-noise)\n" in text
    assert "temperature: and 3 more\n" in text


def test_the_ablation_is_ordered_from_cures_to_errors(faulty, shown):
    """A setting that breaks another scenario is no cure."""
    lines = shown(faulty, width=None).partition("\nablation")[2].splitlines()[1:13]

    assert [(step.split(":")[0], effect.split(" (")[0]) for step, effect in zip(lines[::2], lines[1::2], strict=True)] == [
        ("  engine.logprobs_mode", "    restores temperature"),
        ("  refit.clear_cache", "    restores in-flight-kept"),
        ("  train.head_dtype", "    restores top-p-top-k; worsens cold-start"),
        ("  engine.enforce_eager", "    no effect"),
        ("  engine.enable_prefix_caching", "    no effect"),
        ("  engine.kv_cache_dtype", "    not tried: EngineStartError: no fp8"),
    ]


def test_the_last_line_is_the_verdict(faulty, sound, make_report, shown):
    empty = make_report(results=(), steps=(), attributions=(), versions={})
    for report, verdict in (
        (faulty, "Parity is broken in 4 of 9 scenarios"),
        (sound, "Parity holds in the one scenario that counts."),
        (empty, "Nothing that counts was measured"),
    ):
        assert shown(report, width=None).splitlines()[-1].startswith(verdict)


# ---- the page


@pytest.fixture
def page(tmp_path):
    """Writes a report and returns its page: as it is, and as its words."""

    def write(report: Report) -> tuple[str, str]:
        write_report(report, tmp_path)
        source = (tmp_path / "report.html").read_text(encoding="utf-8")
        return source, " ".join(html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "", source, flags=re.DOTALL)).split())

    return write


def test_everything_that_was_found_is_in_the_page(faulty, page):
    _, text = page(faulty)

    expected = [*faulty.settings, *faulty.active_quirks, *faulty.warnings, faulty.profile, faulty.date]
    expected += [f"{name} {version}" for name, version in faulty.versions.items()]
    for result in faulty.results:
        expected += [result.scenario, result.reason]
        expected += [verdict.threshold for verdict in crossed(result.verdicts)[:3]]
    for result in faulty.measured:
        expected += [result.title, *(token.text for token in result.worst), *(item.label for item in result.by_position)]
    expected += [part for step in faulty.steps for part in (step.setting, step.error)]
    expected += [part for item in faulty.attributions for quirk in item.quirks for part in quirk.model_dump().values()]
    assert [part for part in expected if part not in text] == []


@pytest.mark.parametrize("name", ["faulty", "hostile"])
def test_the_page_neither_fetches_nor_runs_anything(name, request, page):
    source, text = page(request.getfixturevalue(name))

    tags = re.findall(r"<(\w+)", source)
    assert set(tags) <= {"html", "head", "meta", "title", "style", "body", "pre", "span"}
    assert "\x1b" not in source
    if name == "hostile":
        assert all(words in text for words in ("nan✗", "inf✗"))
        assert text.count("<script>") == text.count("<script>alert('x')</script>&\"\\x1b[31m[red]") > 0
