"""The lock file: every difference between what a run was made with and what is loaded is told, in one error."""

from __future__ import annotations

import re

import pytest

from quirks_core.base.errors import DeclarationError
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


def test_a_quirk_that_is_no_data_cannot_be_locked(registry):
    class Own(Match):
        def trace(self, facts):
            raise NotImplementedError

    with pytest.raises(DeclarationError, match=r"one \(dist-a 1\.0, .*\) cannot be locked"):
        Lock.of(registry(("one", "dist-a", "1.0", {"match": Own()})))


def test_a_quirk_that_is_switched_off_may_be_missing(fake_plugins, find_fakes):
    for name in ("one", "two"):
        fake_plugins(f"fake-{name}", **{f"fake_{name}": f'QUIRK = make("fake-{name}")'})
    lock = Lock.of(Registry.load(find_fakes()))
    off = Switches.gather(command_line=SwitchNames(["distribution:fake-one"]), environ={})

    assert lock.differences(Registry.load(find_fakes(), switches=off)) == ()
