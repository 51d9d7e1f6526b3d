"""The lock file: every difference between what a run was made with and what is loaded is told, in one error."""

from __future__ import annotations

import json
import re

import pytest

from quirks_core.base.errors import DeclarationError, UsageError
from quirks_core.declaration.match import Match
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.lock import Lock, LockError
from quirks_core.plugins.registry import Registry


@pytest.fixture
def registry(make_quirk, loaded):
    """A registry of quirks, each given as id, distribution, version and overrides."""
    return lambda *rows: Registry(
        tuple(loaded(make_quirk(id=name, **more), dist, version) for name, dist, version, more in rows)
    )


ONE, TWO = ("one", "dist-a", "1.0", {}), ("two", "dist-b", "2.0", {})


def test_a_lock_survives_its_file(registry, tmp_path):
    file = tmp_path / "quirks.lock"
    lock = Lock.of(registry(ONE, TWO))

    lock.write(file)

    assert [str(item) for item in lock.quirks] == ["one of dist-a 1.0", "two of dist-b 2.0"]
    assert Lock.read(file) == lock
    assert json.loads(file.read_text(encoding="utf-8"))["format"] == 1
    assert [found.name for found in tmp_path.iterdir()] == ["quirks.lock"]
    assert lock.differences(registry(TWO, ONE)) == ()


def test_every_kind_of_change_is_in_one_error(registry, messages, tmp_path):
    moved, changed = ("four", "dist-d", "4.0", {}), ("five", "dist-e", "5.0", {})
    lock = Lock.of(registry(ONE, TWO, moved, changed))
    now = [
        ("one", "dist-a", "1.1", {}),
        ("three", "dist-c", "3.0", {}),
        ("four", "fork-of-d", "4.0", {}),
        ("five", "dist-e", "5.0", {"title": "New"}),
    ]

    error = LockError(str(tmp_path / "quirks.lock"), lock.differences(registry(*now)))
    messages(re.sub("[0-9a-f]{8,}", "DIGEST", str(error)))


@pytest.mark.parametrize("content", [b"", b'{"format": 2, "quirks": []}', b"\xff\xfe", None])
def test_a_file_that_is_no_lock_is_a_usage_error(tmp_path, content):
    if content is not None:
        (tmp_path / "bad.lock").write_bytes(content)

    with pytest.raises(UsageError, match=r"bad\.lock (is no lock file; 'quirks lock' writes one|cannot be read)"):
        Lock.read(tmp_path / "bad.lock")


def test_a_quirk_that_is_switched_off_may_be_missing(fake_plugins, find_fakes):
    fake_plugins("fake-a", fake_one='QUIRK = make("fake-one")')
    fake_plugins("fake-b", fake_two='QUIRK = make("fake-two")')
    lock = Lock.of(Registry.load(find_fakes()))
    off = Switches.gather(command_line=SwitchNames(["distribution:fake-a"]), environ={})

    assert lock.differences(Registry.load(find_fakes(), switches=off)) == ()


def test_a_quirk_that_is_no_data_cannot_be_locked(registry):
    class Own(Match):
        def trace(self, facts):
            raise NotImplementedError

    with pytest.raises(DeclarationError, match=r"one \(dist-a 1\.0, .*\) cannot be locked"):
        Lock.of(registry(("one", "dist-a", "1.0", {"match": Own()})))
