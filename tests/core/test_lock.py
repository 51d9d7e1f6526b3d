"""The lock file: every difference between what a run was made with and what is loaded is told, in one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quirks_core import Loaded, Quirk, Registry, Switches, UsageError, Wishes
from quirks_core.lock import LOCKED_VARIABLE, Lock, LockError, check_lock

MakeQuirk = Callable[..., Quirk]
MakeLoaded = Callable[..., Loaded]


@pytest.fixture(autouse=True)
def bare_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own lock file does not count."""
    monkeypatch.delenv(LOCKED_VARIABLE, raising=False)


@pytest.fixture
def registry(make_quirk: MakeQuirk, loaded: MakeLoaded) -> Callable[..., Registry]:
    """A registry of quirks, each given as id, distribution, version and overrides."""

    def make(*rows: tuple[str, str, str, dict[str, Any]]) -> Registry:
        items = [loaded(make_quirk(id=name, **more), distribution, version) for name, distribution, version, more in rows]
        return Registry(tuple(items))

    return make


ONE, TWO = ("one", "dist-a", "1.0", {}), ("two", "dist-b", "2.0", {})


def test_a_lock_is_what_is_loaded(registry: Callable[..., Registry]) -> None:
    lock = Lock.of(registry(ONE, TWO))

    assert [str(item) for item in lock.quirks] == ["one of dist-a 1.0", "two of dist-b 2.0"]
    assert all(len(item.digest) == 64 for item in lock.quirks)


def test_a_lock_survives_its_file(registry: Callable[..., Registry], tmp_path: Path) -> None:
    lock = Lock.of(registry(ONE, TWO))

    lock.write(tmp_path / "quirks.lock")

    assert Lock.read(tmp_path / "quirks.lock") == lock
    assert json.loads((tmp_path / "quirks.lock").read_text(encoding="utf-8"))["format"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["quirks.lock"]


def test_what_is_loaded_differs_in_nothing_from_itself(registry: Callable[..., Registry]) -> None:
    assert Lock.of(registry(ONE, TWO)).differences(registry(TWO, ONE)) == ()


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ([ONE], "two of dist-b 2.0 is not loaded"),
        ([ONE, TWO, ("three", "dist-c", "3.0", {})], "three of dist-c 3.0 is not in the lock file"),
        ([ONE, ("two", "dist-b", "2.1", {})], "two of dist-b 2.0 is loaded from dist-b 2.1"),
        ([ONE, ("two", "fork-of-b", "2.0", {})], "two of dist-b 2.0 is loaded from fork-of-b 2.0"),
        ([ONE, ("two", "dist-b", "2.0", {"title": "New"})], "two of dist-b 2.0 is declared differently (digest "),
    ],
    ids=["gone", "new", "version", "distribution", "declaration"],
)
def test_every_kind_of_change_is_told(registry: Callable[..., Registry], now: list[Any], words: str) -> None:
    (difference,) = Lock.of(registry(ONE, TWO)).differences(registry(*now))

    assert difference.startswith(words)


def test_all_differences_are_in_one_error(registry: Callable[..., Registry], tmp_path: Path) -> None:
    file = tmp_path / "quirks.lock"
    Lock.of(registry(ONE, TWO)).write(file)

    with pytest.raises(LockError) as error:
        check_lock(registry(("one", "dist-a", "1.1", {}), ("three", "dist-c", "3.0", {})), file)

    lines = str(error.value).splitlines()
    assert str(file) in lines[0]
    assert lines[1:] == [
        "- one of dist-a 1.0 is loaded from dist-a 1.1",
        "- three of dist-c 3.0 is not in the lock file",
        "- two of dist-b 2.0 is not loaded",
    ]
    assert error.value.exit_code == 1


def test_without_a_lock_file_everything_passes(registry: Callable[..., Registry]) -> None:
    check_lock(registry(ONE))


def test_the_environment_names_a_lock_file_and_the_argument_beats_it(
    registry: Callable[..., Registry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lock.of(registry(ONE)).write(tmp_path / "good.lock")
    Lock.of(registry(TWO)).write(tmp_path / "other.lock")
    monkeypatch.setenv(LOCKED_VARIABLE, str(tmp_path / "other.lock"))

    check_lock(registry(ONE), tmp_path / "good.lock")
    with pytest.raises(LockError, match=r"other\.lock"):
        check_lock(registry(ONE))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"format": 2, "quirks": []}', b'{"format": 1, "quirks": [{"id": "one"}]}', b'{"quirks": 3}'],
)
def test_a_file_that_is_no_lock_is_a_usage_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.lock").write_bytes(content)

    with pytest.raises(UsageError, match=r"bad\.lock is no lock file; 'quirks lock' writes one"):
        Lock.read(tmp_path / "bad.lock")


def test_a_file_that_is_no_text_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "bad.lock").write_bytes(b"\xff\xfe")

    with pytest.raises(UsageError, match=r"bad\.lock"):
        Lock.read(tmp_path / "bad.lock")


@pytest.mark.parametrize("name", ["missing.lock", "."])
def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Lock.read(tmp_path / name)


@pytest.mark.parametrize("name", ["no-such-folder/quirks.lock", "folder"])
def test_a_place_that_cannot_be_written_is_a_usage_error(registry: Callable[..., Registry], tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(UsageError, match="cannot be written"):
        Lock.of(registry(ONE)).write(tmp_path / name)


def test_a_distribution_that_is_switched_off_may_be_missing(
    fake_plugins: Callable[..., None], find_fakes: Callable[[], list[Any]]
) -> None:
    fake_plugins("fake-a", fake_one='QUIRK = make("fake-one")')
    fake_plugins("fake-b", fake_two='QUIRK = make("fake-two")')
    lock = Lock.of(Registry.load(find_fakes()))
    off = Switches.gather(command_line=Wishes(["distribution:fake-a"]), environ={})

    assert lock.differences(Registry.load(find_fakes(), switches=off)) == ()


def test_a_plugin_that_broke_since_is_not_loaded(
    fake_plugins: Callable[..., None], find_fakes: Callable[[], list[Any]], registry: Callable[..., Registry]
) -> None:
    fake_plugins("fake-a", fake_one="QUIRK = 1")
    locked = Lock.of(registry(("fake-one", "fake-a", "1.2", {})))

    assert locked.differences(Registry.load(find_fakes())) == ("fake-one of fake-a 1.2 is not loaded",)
