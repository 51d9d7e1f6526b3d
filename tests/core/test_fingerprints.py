"""Fingerprints follow the text of a source and nothing else, and drift is shown line by line."""

from __future__ import annotations

import hashlib
import textwrap

import pytest

from quirks_core.source.fingerprints import drift, line_digests
from quirks_core.source.vllm_source import INSTALLED

TARGET = "fake_read:function"
SOURCE = "def function():\n    first = 1\n    second = 2\n    return first + second\n"


@pytest.fixture
def write(write_modules):
    """Installs a module of that text."""
    return lambda text: write_modules({"fake_read.py": text})


def test_a_fingerprint_begins_the_sha256_of_the_text(write):
    def of(text):
        write(text)
        return INSTALLED.fingerprint(TARGET)

    before = of(SOURCE)
    changes = (("second = 2", "second = 3"), ("second = 2", "second = 2  # a comment"), ("()", "(argument)"))

    assert before == hashlib.sha256(SOURCE.rstrip().encode()).hexdigest()[:12]
    assert [of(f"x = 1\n\n\n{SOURCE}"), of(f"if True:\n{textwrap.indent(SOURCE, '    ')}")] == [before] * 2
    assert before not in [of(SOURCE.replace(*change)) for change in changes]


GONE = "- (lines {} to {} of the source of 1.0, 1.1)"


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (
            "    second = 2\n",
            "    second = 3\n    third = 4\n",
            ["  (2 lines as before)", GONE.format(3, 3), "+     second = 3", "+     third = 4", "  (1 lines as before)"],
        ),
        ("    first = 1\n    second = 2\n", "", ["  (1 lines as before)", GONE.format(2, 3), "  (1 lines as before)"]),
        (
            "    first = 1\n",
            "    # a comment\n    first = 1\n",
            ["  (1 lines as before)", "+     # a comment", "  (3 lines as before)"],
        ),
    ],
    ids=["changed and added", "gone", "added"],
)
def test_drift_is_shown_against_the_nearest_known_source(write, old, new, shown):
    write("def function():\n    return None\n")
    far = line_digests(INSTALLED.attribute_source(TARGET))
    write(SOURCE)
    near = line_digests(INSTALLED.attribute_source(TARGET))

    write(SOURCE.replace(old, new))
    now = INSTALLED.attribute_source(TARGET)

    known = {near: "1.0, 1.1"}
    assert drift(now, known).splitlines() == shown
    assert drift(now, {far: "2.0"} | known) == drift(now, known | {far: "2.0"}) == drift(now, known) != drift(now, {far: "2.0"})
    assert all("'quirks fingerprint --write' keeps them" in drift(now, nothing) for nothing in ({}, {"": "1.0"}))
