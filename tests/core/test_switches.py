"""Switches: a stronger layer wins, then the more specific name; no name is silently ignored."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quirks_core import Loaded, Quirk, Switches, UsageError, Wishes
from quirks_core.switches import DISABLE_VARIABLE, FORCE_VARIABLE

MakeQuirk = Callable[..., Quirk]
MakeLoaded = Callable[..., Loaded]

LAYERS = ("api", "command_line", "environ", "config_file")  # strongest first
WORDS = {
    ("api", False): "the call (disable=)",
    ("api", True): "the call (force=)",
    ("command_line", False): "the command line (--disable)",
    ("command_line", True): "the command line (--force)",
    ("environ", False): f"the environment ({DISABLE_VARIABLE})",
    ("environ", True): f"the environment ({FORCE_VARIABLE})",
    ("config_file", False): "the configuration (quirks.disable)",
    ("config_file", True): "the configuration (quirks.force)",
}
#: The names that take in the quirk of these tests, the most specific first.
NAMES = ("example", "enforce_eager", "distribution:acme-quirks", "third-party", "all")


def gather(*asked: tuple[str, str, bool]) -> Switches:
    """Collects switches given as layer, name and whether it turns on."""
    wishes: dict[str, dict[bool, list[str]]] = {layer: {False: [], True: []} for layer in LAYERS}
    for layer, name, on in asked:
        wishes[layer][on].append(name)
    environ = {DISABLE_VARIABLE: ",".join(wishes["environ"][False]), FORCE_VARIABLE: ",".join(wishes["environ"][True])}
    others = {layer: Wishes(wishes[layer][False], wishes[layer][True]) for layer in LAYERS if layer != "environ"}
    return Switches.gather(environ=environ, **others)


@pytest.fixture
def item(make_quirk: MakeQuirk, loaded: MakeLoaded) -> Loaded:
    """A third party's quirk."""
    return loaded(make_quirk(), "Acme_Quirks")


def test_without_switches_the_declaration_decides(item: Loaded) -> None:
    assert Switches.gather(environ={}).of(item) is None


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_turns_every_kind_of_name_off_and_on(item: Loaded, layer: str, name: str, on: bool) -> None:
    switch = gather((layer, name, on)).of(item)

    assert switch == (on, name, WORDS[layer, on])
    assert str(switch) == f"{'forced' if on else 'switched off'} by {name!r} in {WORDS[layer, on]}"


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize(("stronger", "weaker"), [(a, b) for i, a in enumerate(LAYERS) for b in LAYERS[i + 1 :]])
def test_a_stronger_layer_wins_however_general_its_name(item: Loaded, stronger: str, weaker: str, on: bool) -> None:
    switch = gather((weaker, "example", not on), (stronger, "all", on)).of(item)

    assert switch == (on, "all", WORDS[stronger, on])


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("specific", "general"), [(a, b) for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]])
def test_within_a_layer_the_more_specific_name_wins(item: Loaded, layer: str, specific: str, general: str, on: bool) -> None:
    switch = gather((layer, general, not on), (layer, specific, on)).of(item)

    assert switch == (on, specific, WORDS[layer, on])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layer", LAYERS)
def test_one_layer_cannot_turn_a_name_off_and_on(layer: str, name: str) -> None:
    with pytest.raises(UsageError) as error:
        gather((layer, name, False), (layer, name, True))

    for words in (repr(name), WORDS[layer, False], WORDS[layer, True]):
        assert words in str(error.value)


@pytest.mark.parametrize("name", ["enforce_eager", "ENFORCE_EAGER", "Enforce_Eager"])
def test_a_flag_may_be_written_in_any_case(item: Loaded, name: str) -> None:
    assert gather(("command_line", name, False)).of(item) is not None


@pytest.mark.parametrize("name", ["acme-quirks", "Acme_Quirks", "acme.quirks", "ACME--quirks"])
def test_a_distribution_may_be_written_as_pip_takes_it(item: Loaded, name: str) -> None:
    switches = gather(("command_line", f"distribution:{name}", False))

    assert switches.of(item) is not None
    assert switches.check([item]) == []


def test_an_id_is_taken_as_it_is_written(item: Loaded) -> None:
    assert gather(("command_line", "Example", False)).of(item) is None


def test_our_own_quirks_are_no_third_partys(make_quirk: MakeQuirk, loaded: MakeLoaded) -> None:
    ours = loaded(make_quirk(), "model-quirks")

    assert gather(("api", "third-party", False)).of(ours) is None
    assert gather(("api", "distribution:model-quirks", False)).of(ours) is not None
    assert gather(("api", "all", False)).of(ours) is not None


@pytest.mark.parametrize("name", ["other", "load_format", "distribution:other"])
def test_a_name_of_others_leaves_a_quirk_alone(item: Loaded, name: str) -> None:
    assert gather(("api", name, False)).of(item) is None


@pytest.mark.parametrize("text", ["a,b", " a , b ", "a,,b,", "a,b\n"])
@pytest.mark.parametrize("variable", [DISABLE_VARIABLE, FORCE_VARIABLE])
def test_a_variable_lists_names_between_commas(variable: str, text: str) -> None:
    layers = Switches.gather(environ={variable: text}).layers

    assert {name for layer in layers for name in layer} == {"a", "b"}


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_empty_variable_switches_nothing(text: str) -> None:
    layers = Switches.gather(environ={DISABLE_VARIABLE: text, FORCE_VARIABLE: text}).layers

    assert [name for layer in layers for name in layer] == []


@pytest.mark.parametrize(("variable", "on"), [(DISABLE_VARIABLE, False), (FORCE_VARIABLE, True)])
def test_the_variables_are_read_from_the_process(
    monkeypatch: pytest.MonkeyPatch, item: Loaded, variable: str, on: bool
) -> None:
    monkeypatch.delenv(DISABLE_VARIABLE, raising=False)
    monkeypatch.setenv(variable, "example")

    assert Switches.gather().of(item) == (on, "example", WORDS["environ", on])


@pytest.mark.parametrize("name", [*NAMES, "load_format", "distribution:model-quirks", "acme-quirks:own", "broken-one"])
def test_ids_flags_distributions_and_broken_plugins_are_known_names(
    item: Loaded, make_quirk: MakeQuirk, loaded: MakeLoaded, name: str
) -> None:
    other = loaded(make_quirk(id="other", flag="acme-quirks:own"), "acme-quirks")

    assert gather(("command_line", name, False)).check([item, other], [("broken-one", "broken-dist")]) == []


def test_a_name_that_a_plugin_might_have_that_was_not_loaded_is_a_warning(item: Loaded) -> None:
    (warning,) = gather(("command_line", "exampel", False)).check([item], [("broken-one", "broken-dist")])

    assert warning.startswith(
        "no quirk of that name, unless a plugin that was not loaded has it: 'exampel' in the command line"
    )
    assert warning.endswith("did you mean 'example'?")


def test_a_distribution_that_is_not_installed_is_an_error_whatever_was_not_loaded(item: Loaded) -> None:
    with pytest.raises(UsageError, match="did you mean 'distribution:acme-quirks'"):
        gather(("command_line", "distribution:acme-quirk", False)).check([item], [("broken-one", "broken-dist")])


def test_all_unknown_names_are_reported_with_their_layer_and_the_nearest_name(item: Loaded) -> None:
    switches = gather(
        ("command_line", "exampel", False),
        ("environ", "load_fromat", False),
        ("config_file", "distribution:acme-quirk", True),
        ("api", "third-parties", True),
    )

    with pytest.raises(UsageError) as error:
        switches.check([item])

    message = str(error.value)
    assert f"'exampel' in {WORDS['command_line', False]}; did you mean 'example'?" in message
    assert f"'load_fromat' in {WORDS['environ', False]}; did you mean 'load_format'?" in message
    assert f"'distribution:acme-quirk' in {WORDS['config_file', True]}; did you mean 'distribution:acme-quirks'?" in message
    assert f"'third-parties' in {WORDS['api', True]}; did you mean 'third-party'?" in message
