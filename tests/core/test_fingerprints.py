"""Fingerprints with line digests: two are the same by their source alone, and drift is shown line by line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from quirks_core import ABSENT
from quirks_core.fingerprints import HOMELESS, drift, fingerprint, is_expected, same

WriteModules = Callable[[dict[str, str]], None]
TARGET = "fake_read:function"
SOURCE = "def function():\n    first = 1\n    second = 2\n    return first + second\n"


@pytest.fixture
def write(write_modules: WriteModules) -> Callable[[str], None]:
    """Installs a module of that text."""
    return lambda text: write_modules({"fake_read.py": text})


def test_the_line_digests_come_behind_the_digest_of_the_whole(write: Callable[[str], None]) -> None:
    write(SOURCE)

    whole, colon, lines = fingerprint(TARGET, lines=True).partition(":")

    assert (whole, colon) == (fingerprint(TARGET), ":")
    assert whole == hashlib.sha256(SOURCE.rstrip().encode()).hexdigest()
    assert len(lines) == 4 * 6


@pytest.mark.parametrize("target", ["fake_read:nothing", "fake_read:Nothing.method", "no_such_package:function"])
def test_what_is_not_there_has_no_line_digests(write: Callable[[str], None], target: str) -> None:
    write(SOURCE)

    assert fingerprint(target, lines=True) == fingerprint(target)
    assert fingerprint(target) in (ABSENT, HOMELESS)


@pytest.mark.parametrize("changed", ["LIMIT = 4\n", "LIMIT: int = 3\n"])
def test_a_constant_drifts_like_a_function(write: Callable[[str], None], changed: str) -> None:
    write("LIMIT = 3\n")
    found = fingerprint("fake_read:LIMIT")
    before = is_expected("fake_read:LIMIT", [found])

    write(changed)

    assert before
    assert not is_expected("fake_read:LIMIT", [found, ABSENT])


def test_a_function_is_what_counts_where_its_name_is_assigned_again(write: Callable[[str], None]) -> None:
    write(SOURCE)
    found = fingerprint(TARGET)

    write(f"{SOURCE}function = print(function)\n")

    assert fingerprint(TARGET) == found


def test_line_digests_do_not_count_when_two_are_compared(write: Callable[[str], None]) -> None:
    write(SOURCE)
    bare, long = fingerprint(TARGET), fingerprint(TARGET, lines=True)

    assert same(bare, long)
    assert same(long, bare)
    assert not same(long, "0" * 64 + ":" + long.partition(":")[2])


def test_one_of_several_sources_is_enough(write: Callable[[str], None]) -> None:
    write(SOURCE)

    assert is_expected(TARGET, ["0" * 64, fingerprint(TARGET, lines=True)])
    assert not is_expected(TARGET, ["0" * 64, ABSENT])
    assert not is_expected(TARGET, [])


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        (
            SOURCE.replace("    second = 2\n", "    second = 3\n    third = 4\n"),
            [
                "  (2 lines as before)",
                "- (lines 3 to 3 of the source it was written against)",
                "+     second = 3",
                "+     third = 4",
                "  (1 lines as before)",
            ],
        ),
        (
            SOURCE.replace("    first = 1\n    second = 2\n", ""),
            ["  (1 lines as before)", "- (lines 2 to 3 of the source it was written against)", "  (1 lines as before)"],
        ),
        (
            SOURCE.replace("    first", "    # a comment\n    first", 1),
            ["  (1 lines as before)", "+     # a comment", "  (3 lines as before)"],
        ),
    ],
    ids=["changed and added", "gone", "added"],
)
def test_drift_shows_new_lines_and_counts_those_that_are_gone(
    write: Callable[[str], None], changed: str, shown: list[str]
) -> None:
    write(SOURCE)
    known = fingerprint(TARGET, lines=True)
    write(changed)

    assert drift(TARGET, [known]).splitlines() == shown


def test_drift_is_shown_against_the_nearest_of_several_sources(write: Callable[[str], None]) -> None:
    write(SOURCE)
    near = fingerprint(TARGET, lines=True)
    write("def function():\n    return None\n")
    far = fingerprint(TARGET, lines=True)
    write(SOURCE.replace("second = 2", "second = 3"))

    assert drift(TARGET, [far, near]) == drift(TARGET, [near]) == drift(TARGET, [near, far])


def test_without_line_digests_the_reader_is_told_how_to_get_them(write: Callable[[str], None]) -> None:
    write(SOURCE)

    assert "quirks fingerprint" in drift(TARGET, ["0" * 64])


def test_a_target_that_is_gone_is_said_to_be(write: Callable[[str], None]) -> None:
    write("")

    assert drift(TARGET, ["0" * 64]) == f"{TARGET} does not exist in the installed source"


@pytest.mark.parametrize(
    "target",
    ["..x:y", "a..b:c", ".:x", "a b:c", "fake_read:function.", "fake_read:Class..x", "\0:x", "sys:path", "builtins:len"],
)
def test_a_strange_target_has_no_source_and_raises_nothing(write: Callable[[str], None], target: str) -> None:
    write(SOURCE)

    assert fingerprint(target) in (ABSENT, HOMELESS)


@pytest.mark.parametrize("content", [b'x = "\xff"\n', b'print "old"\n', b"def f(:\n", b"\0", b"\xef\xbb\xbfx = 1\n"])
def test_a_file_that_is_no_python_of_ours_raises_nothing(write: Callable[[str], None], site: object, content: bytes) -> None:
    write("")
    (site / "fake_read.py").write_bytes(content)  # type: ignore[operator]

    assert fingerprint(TARGET) in (ABSENT, HOMELESS)
