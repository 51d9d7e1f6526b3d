"""The table of evidence of a distribution: a row for each quirk and installation."""

from __future__ import annotations

from datetime import date

import pytest

from quirks_core import Kind, PairedRun
from quirks_core.base.errors import UsageError
from quirks_core.declaration.quirk import Location
from worker.lab.kit import evidence_table as evidence
from worker.lab.kit.evidence_table import Proved

_VERSIONS = {"torch": "2.13.0+cpu", "vllm": "0.32.0"}
_PROVED = Proved(platform="cpu", by="paired run", conclusion="NEEDED", date=date(2026, 11, 1), seen="a, b", **_VERSIONS)


@pytest.fixture
def quirk(write_modules, make_quirk):
    """A quirk of a package that may have a table."""
    write_modules({"fake_quirks/__init__.py": ""})

    def make(**more):
        place = Location("fake_quirks/one.py", 1, "fake_quirks.one")
        return make_quirk(**{"id": "one", "location": place, "evidence": PairedRun("mine.scenarios:run"), **more})

    return make


def _record(quirk, *found):
    for item in found:
        path = evidence.path_for(quirk)
        evidence.write(path, evidence.with_proved(evidence.read(path), {quirk.id: item}))
    return evidence.proved(quirk)


def test_a_new_row_replaces_that_of_the_same_installation(quirk, site):
    """So is one of which less was recorded. Each model runner, kind of CPU and mode is another installation."""

    def row(**more):
        return _PROVED.model_copy(update=more)

    older, gpu, graphs, less = row(vllm="0.9.2"), row(platform="cuda"), row(graphs=True), row(runner="v2")
    v1, avx2, amx = row(runner="v1"), row(runner="v2", cpu="avx2"), row(runner="v2", cpu="amx")
    later = row(graphs=True, conclusion="NOT NEEDED", date=date(2026, 11, 2))

    assert _record(quirk(), _PROVED, v1, gpu, graphs, less, avx2, amx, later, older) == (older, later, v1, amx, avx2, gpu)
    assert len((site / "fake_quirks" / "evidence.csv").read_text("utf-8").splitlines()) == 7  # with the heading


def test_a_row_keeps_what_its_run_saw(quirk):
    """Lines and separators of Unicode, too."""
    seen = _PROVED.model_copy(update={"seen": 'one\ntwo, "three"\u2028four\x85'})

    assert _record(quirk(), seen) == (seen,)


def test_a_row_is_in_the_words_of_what_the_quirk_is_today(quirk):
    (needed,) = _record(quirk(), _PROVED)
    (holds,) = evidence.proved(quirk(kind=Kind.RULE))

    assert (needed.conclusion, holds.conclusion) == ("NEEDED", "HOLDS")
    assert (needed.decided, holds.decided) == (True, True)
    assert evidence.proved(quirk(evidence=())) == ()  # its paired run is gone


@pytest.mark.parametrize("text", ["{}", "quirk,colour\none,red\n", "quirk,graphs,date\none,,soon\n"])
def test_a_file_that_is_no_table_is_named(quirk, text):
    evidence.path_for(quirk()).write_text(text + "\nmore", encoding="utf-8")

    with pytest.raises(UsageError, match=r"evidence\.csv is no table of evidence; delete it, and .* makes it anew$"):
        evidence.proved(quirk())
