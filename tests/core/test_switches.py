"""Off switches: command line over environment over file, and no name is silently ignored."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quirks_core import Quirk, Switches, UsageError
from quirks_core.switches import VARIABLE

COMMAND_LINE = "the command line (--disable)"
ENVIRONMENT = f"the environment ({VARIABLE})"
FILE = "the configuration (quirks.disable)"


def test_without_switches_everything_is_on(make_quirk: Callable[..., Quirk]) -> None:
    assert Switches.gather(environ={}).layer(make_quirk()) is None


def test_each_layer_switches_off_and_is_named() -> None:
    switches = Switches.gather(command_line=["a"], config_file=["b"], environ={VARIABLE: "c"})

    assert switches.disabled == {"a": COMMAND_LINE, "b": FILE, "c": ENVIRONMENT}


@pytest.mark.parametrize(
    ("layers", "winner"),
    [
        ({"command_line": ["a"], "config_file": ["a"], "environ": {VARIABLE: "a"}}, COMMAND_LINE),
        ({"config_file": ["a"], "environ": {VARIABLE: "a"}}, ENVIRONMENT),
        ({"config_file": ["a"], "environ": {}}, FILE),
    ],
)
def test_the_command_line_beats_the_environment_beats_the_file(layers: dict[str, list[str]], winner: str) -> None:
    assert Switches.gather(**layers).disabled == {"a": winner}


@pytest.mark.parametrize("text", ["a,b", " a , b ", "a,,b,", "a,b\n"])
def test_the_variable_lists_names_between_commas(text: str) -> None:
    assert set(Switches.gather(environ={VARIABLE: text}).disabled) == {"a", "b"}


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_empty_variable_switches_nothing_off(text: str) -> None:
    assert Switches.gather(environ={VARIABLE: text}).disabled == {}


def test_the_variable_is_read_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "a")

    assert Switches.gather().disabled == {"a": ENVIRONMENT}


@pytest.mark.parametrize("name", ["example", "enforce_eager", "ENFORCE_EAGER"])
def test_a_quirk_is_switched_off_by_its_id_or_its_flag(make_quirk: Callable[..., Quirk], name: str) -> None:
    assert Switches.gather(command_line=[name], environ={}).layer(make_quirk()) == COMMAND_LINE


def test_another_quirk_stays_on(make_quirk: Callable[..., Quirk]) -> None:
    assert Switches.gather(command_line=["other", "load_format"], environ={}).layer(make_quirk()) is None


@pytest.mark.parametrize("name", ["example", "enforce_eager", "load_format", "my-dist:own", "broken-one"])
def test_ids_flags_and_broken_plugins_are_known_names(make_quirk: Callable[..., Quirk], name: str) -> None:
    quirks = [make_quirk(), make_quirk(id="other", flag="my-dist:own")]

    Switches.gather(command_line=[name], environ={}).check(quirks, ["broken-one"])


def test_all_unknown_names_are_reported_with_their_layer_and_the_nearest_name(make_quirk: Callable[..., Quirk]) -> None:
    switches = Switches.gather(command_line=["exampel"], config_file=["zzz"], environ={VARIABLE: "load_fromat"})

    with pytest.raises(UsageError) as error:
        switches.check([make_quirk()])

    message = str(error.value)
    assert f"'exampel' in {COMMAND_LINE}; did you mean 'example'?" in message
    assert f"'load_fromat' in {ENVIRONMENT}; did you mean 'load_format'?" in message
    assert f"'zzz' in {FILE}" in message
