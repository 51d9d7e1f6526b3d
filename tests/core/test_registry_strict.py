"""Strict: a broken plugin is fatal, and all of them are in one error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quirks_core import Discovered, Registry, UsageError
from quirks_core.errors import BrokenPluginsError
from quirks_core.registry import STRICT_VARIABLE

FindFakes = Callable[[], list[Discovered]]


@pytest.fixture(autouse=True)
def lenient_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own strictness does not count."""
    monkeypatch.delenv(STRICT_VARIABLE, raising=False)


@pytest.fixture
def two_broken(fake_plugins: Callable[..., None]) -> None:
    """Installs two broken plugins and a good one."""
    fake_plugins(
        fake_import="import no_such_module\nQUIRK = 1", fake_type="QUIRK = 'text'", fake_good='QUIRK = make("fake-good")'
    )


@pytest.mark.usefixtures("two_broken")
def test_by_default_broken_plugins_are_rows(find_fakes: FindFakes) -> None:
    assert len(Registry.load(find_fakes()).broken) == 2


@pytest.mark.usefixtures("two_broken")
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_strict_lists_every_broken_plugin_in_one_error(find_fakes: FindFakes, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "environment":
        monkeypatch.setenv(STRICT_VARIABLE, "1")

    with pytest.raises(BrokenPluginsError) as error:
        Registry.load(find_fakes(), strict=True if by == "argument" else None)

    lines = str(error.value).splitlines()
    assert (len(error.value.problems), error.value.exit_code) == (2, 3)
    assert lines[1].startswith("- plugin 'fake-import' of fake-dist 1.2 (fake_import:QUIRK) is broken: ModuleNotFoundError")
    assert lines[2].startswith("- plugin 'fake-type' of fake-dist 1.2 (fake_type:QUIRK) is broken: ")


@pytest.mark.usefixtures("two_broken")
def test_the_argument_beats_the_environment(find_fakes: FindFakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "1")

    assert len(Registry.load(find_fakes(), strict=False).broken) == 2


@pytest.mark.usefixtures("two_broken")
@pytest.mark.parametrize("text", ["", "0"])
def test_a_variable_that_says_no_is_not_strict(find_fakes: FindFakes, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, text)

    assert len(Registry.load(find_fakes()).broken) == 2


@pytest.mark.usefixtures("two_broken")
@pytest.mark.parametrize("text", ["true", "yes", "maybe"])
def test_any_other_word_is_never_silently_lenient(find_fakes: FindFakes, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, text)

    with pytest.raises((BrokenPluginsError, UsageError)):
        Registry.load(find_fakes())


def test_strict_with_nothing_broken_is_like_any_other_time(fake_plugins: Callable[..., None], find_fakes: FindFakes) -> None:
    fake_plugins(fake_good='QUIRK = make("fake-good")')

    assert [item.quirk.id for item in Registry.load(find_fakes(), strict=True).loaded] == ["fake-good"]


@pytest.mark.parametrize("order", [1, -1])
def test_duplicates_and_circles_count_as_broken_whatever_the_order(
    fake_plugins: Callable[..., None], find_fakes: FindFakes, order: int
) -> None:
    fake_plugins(
        fake_pack='@hookimpl\ndef quirks_declare():\n    return [make("fake-same")]',
        fake_same='QUIRK = make("fake-same")',
        fake_self='QUIRK = make("fake-self", supersedes="fake-self")',
    )

    with pytest.raises(BrokenPluginsError) as error:
        Registry.load(find_fakes()[::order], strict=True)

    assert sorted(text.split("'")[1] for text in error.value.problems) == ["fake-pack", "fake-same", "fake-self"]
