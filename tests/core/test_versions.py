"""Version ranges: half-open, pre-releases before a fix are affected, what cannot be placed is unknown; dates never count."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quirks_core import Affected
from quirks_core.base.errors import DeclarationError
from quirks_core.declaration.trace import Answer
from quirks_core.plugins import validate
from quirks_core.plugins.validate import expired

RANGE = Affected("vllm", introduced="0.9.0", fixed="0.11.1")
YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN


@pytest.mark.parametrize(
    ("affected", "installed", "answer"),
    [
        (RANGE, "0.9.0rc1", NO),
        (RANGE, "0.9.0", YES),
        (RANGE, "0.9.0+cpu", YES),
        (RANGE, "0.10.1.post1", YES),  # compared as numbers, not as text
        (RANGE, "0.11.1", NO),
        (RANGE, "0.11.1.post1", NO),
        (RANGE, "0.11.1rc1", YES),  # a pre-release before the fix
        (RANGE, "0.11.1.dev3+g1234567", YES),
        (RANGE, "0.9.1.dev59+g1234567", YES),  # a nightly of a real release
        (RANGE, "0.1.dev1+g1234567", UNKNOWN),  # source builds
        (RANGE, "0.0.0", UNKNOWN),  # a build without tags
        (RANGE, "", UNKNOWN),
        (RANGE, "0.9.x", UNKNOWN),
        (Affected("vllm", fixed="0.9.2"), "0.2.0", YES),
        (Affected("vllm", introduced="0.9.0"), "99.0", YES),
        (Affected("vllm"), "0.1.0", YES),  # a plain release
        (Affected("vllm"), None, UNKNOWN),
    ],
)
def test_a_range_answers_for_every_form_of_version(affected, installed, answer):
    assert affected.answer(installed) is answer


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        *((bounds, "must come before") for bounds in (("0.9", "0.9.0"), ("0.10.0", "0.9.2"))),
        *(((None, bound), "is not a version") for bound in ("", "0.1.dev1")),
    ],
)
def test_an_empty_range_or_a_bound_that_is_no_version_is_refused(bounds, words):
    with pytest.raises(DeclarationError, match=words):
        Affected("vllm", *bounds)


BOUNDS = st.none() | st.sampled_from(["0.1", "0.2", "0.3", "0.4"])


@given(BOUNDS, BOUNDS, BOUNDS, BOUNDS)
def test_two_ranges_overlap_where_a_version_lies_in_both(a, b, c, d):
    assume(None in (a, b) or a < b)
    assume(None in (c, d) or c < d)
    one, two = Affected("p", a, b), Affected("p", c, d)

    shared = [text for text in ("0.0.5", "0.1", "0.2", "0.3", "0.4") if one.answer(text) is two.answer(text) is YES]

    assert one.overlaps(two) is two.overlaps(one) is bool(shared)
    assert not one.overlaps(Affected("another", c, d))


@pytest.mark.parametrize(
    ("ranges", "answer"),
    [
        ([], False),
        ([Affected("vllm", fixed="0.9.2")], False),
        ([Affected("vllm", fixed="0.9.0")], True),
        ([Affected("vllm", fixed="0.8")], True),
        ([Affected("vllm", fixed="0.8"), Affected("vllm", "0.30")], False),
        ([Affected("vllm", fixed="0.8"), Affected("torch", "2.0")], True),
    ],
)
def test_a_quirk_expires_once_no_supported_version_is_affected(make_quirk, monkeypatch, ranges, answer):
    monkeypatch.setattr(validate, "SUPPORTED_FLOOR", {"vllm": "0.9"})

    assert bool(expired(make_quirk(affected=ranges))) is answer
