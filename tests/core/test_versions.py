"""Version ranges: half-open, pre-releases before a fix are affected, what cannot be placed is unknown."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quirks_core import Affected, Answer, DeclarationError
from quirks_core.versions import parse_version

RANGE = Affected("vllm", introduced="0.9.0", fixed="0.11.1")


@pytest.mark.parametrize(
    ("installed", "answer"),
    [
        ("0.8.5.post1", Answer.NO),
        ("0.9.0rc1", Answer.NO),
        ("0.9.0", Answer.YES),
        ("0.9.0+cpu", Answer.YES),
        ("0.10.1.post1", Answer.YES),
        ("0.11.0", Answer.YES),
        ("0.11.1", Answer.NO),
        ("0.11.1+cu129", Answer.NO),
        ("0.11.1.post1", Answer.NO),
        ("0.12.0rc1", Answer.NO),
    ],
)
def test_a_range_holds_its_lower_bound_and_not_its_upper(installed: str, answer: Answer) -> None:
    assert RANGE.answer(installed) is answer


@pytest.mark.parametrize("installed", ["0.11.1rc1", "0.11.1.dev3", "0.11.1.dev3+g1234567"])
def test_a_pre_release_before_the_fix_is_affected(installed: str) -> None:
    assert RANGE.answer(installed) is Answer.YES


@pytest.mark.parametrize("installed", ["0.1.dev1+g1234567", "0.1.dev16237", "0.0.dev0", "0.0.0.dev0"])
def test_a_source_build_is_unknown(installed: str) -> None:
    assert RANGE.answer(installed) is Answer.UNKNOWN


def test_a_build_without_tags_that_calls_itself_nought_is_unknown() -> None:
    assert [Affected("vllm", fixed="0.9.2").answer(text) for text in ("0.0.0", "0", "0.0.0+cpu")] == [Answer.UNKNOWN] * 3


@pytest.mark.parametrize("installed", [None, "", "main", "0.9.x", "not a version"])
def test_a_missing_or_unreadable_version_is_unknown(installed: str | None) -> None:
    assert RANGE.answer(installed) is Answer.UNKNOWN


def test_a_nightly_of_a_real_release_is_placed() -> None:
    assert RANGE.answer("0.9.1.dev59+g1234567") is Answer.YES


def test_without_an_introduction_everything_before_the_fix_is_affected() -> None:
    assert Affected("vllm", fixed="0.9.2").answer("0.2.0") is Answer.YES


def test_without_a_fix_everything_since_the_introduction_is_affected() -> None:
    assert Affected("vllm", introduced="0.9.0").answer("99.0") is Answer.YES


def test_without_bounds_every_placed_version_is_affected() -> None:
    assert Affected("vllm").answer("0.3.0") is Answer.YES


def test_without_bounds_a_missing_package_is_still_unknown() -> None:
    assert Affected("vllm").answer(None) is Answer.UNKNOWN


@pytest.mark.parametrize(("introduced", "fixed"), [("0.9", "0.9.0"), ("0.10.0", "0.9.2")])
def test_an_empty_range_is_refused(introduced: str, fixed: str) -> None:
    with pytest.raises(DeclarationError, match="must come before"):
        Affected("vllm", introduced=introduced, fixed=fixed)


@pytest.mark.parametrize("bound", ["latest", "", "0.1.dev1"])
def test_a_bound_that_is_no_version_is_refused(bound: str) -> None:
    with pytest.raises(DeclarationError, match="is not a version"):
        Affected("vllm", fixed=bound)


def test_versions_are_compared_as_numbers_not_as_text() -> None:
    assert Affected("vllm", fixed="0.10.0").answer("0.9.2") is Answer.YES


@pytest.mark.parametrize(
    ("affected", "words"),
    [
        (RANGE, ">= 0.9.0, < 0.11.1"),
        (Affected("vllm", fixed="0.9.2"), "< 0.9.2"),
        (Affected("vllm", introduced="0.9.2"), ">= 0.9.2"),
        (Affected("vllm"), "any version"),
    ],
)
def test_a_range_reads_as_its_bounds(affected: Affected, words: str) -> None:
    assert str(affected) == words


@given(st.lists(st.integers(0, 30), min_size=3, max_size=3), st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_a_bound_divides_all_versions_into_before_and_after(version: list[int], bound: list[int]) -> None:
    assume(any(version))
    text, limit = (".".join(map(str, parts)) for parts in (version, bound))

    before = Affected("p", fixed=limit).answer(text)
    after = Affected("p", introduced=limit).answer(text)

    assert {before, after} == {Answer.YES, Answer.NO}


def test_a_plain_release_named_0_1_is_a_version() -> None:
    assert parse_version("0.1.0") is not None
