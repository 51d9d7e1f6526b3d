"""Switches: what the user turned off or on by name, and in which layer.

A name is that of a quirk, a flag, a distribution (``distribution:acme-quirks``), ``third-party`` or ``all``. A stronger layer
wins (call, command line, environment, configuration); within one layer the more specific name does, in the order of this list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quirks_core.base.errors import UsageError, nearest
from quirks_core.declaration.flags import BUILT_IN, ModelFlag
from quirks_core.facts.packages import distribution_of
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import Switch

#: Comma-separated names to turn off.
DISABLE_VARIABLE = "MODEL_QUIRKS_DISABLE"
#: Comma-separated names to turn on, whatever their match and version ranges are.
FORCE_VARIABLE = "MODEL_QUIRKS_FORCE"

_DISTRIBUTION = "distribution:"
_THIRD_PARTY = "third-party"
_ALL = "all"


class SwitchNames(NamedTuple):
    """What one layer sets: names to turn off, and names to turn on."""

    disable: Sequence[str] = ()
    force: Sequence[str] = ()


NOTHING = SwitchNames()


@dataclass(frozen=True, slots=True)
class Switches:
    """What the user turned off or on.

    Attributes:
        layers: Per layer, strongest first, the switches by name.
    """

    layers: tuple[Mapping[str, Switch], ...] = ()

    @classmethod
    def gather(
        cls,
        *,
        call: SwitchNames = NOTHING,
        command_line: SwitchNames = NOTHING,
        environ: Mapping[str, str] | None = None,
        config_file: SwitchNames = NOTHING,
    ) -> Switches:
        """Collects the switches of all layers.

        Raises:
            UsageError: One layer turns the same name off and on, or gives an empty name.
        """
        variables = os.environ if environ is None else environ
        texts = (variables.get(name, "") for name in (DISABLE_VARIABLE, FORCE_VARIABLE))
        # A variable that is set to nothing, or a comma at the end, gives no name.
        from_environment = SwitchNames(*([name for name in text.split(",") if name.strip()] for text in texts))
        return cls(
            tuple(
                _layer(names, *words)
                for names, *words in (
                    (call, "the call (disable=)", "the call (force=)"),
                    (command_line, "the command line (--disable)", "the command line (--force)"),
                    (from_environment, f"the environment ({DISABLE_VARIABLE})", f"the environment ({FORCE_VARIABLE})"),
                    (config_file, "the configuration (quirks.disable)", "the configuration (quirks.force)"),
                )
            )
        )

    def under(self, names: SwitchNames, who: str) -> Switches:
        """Returns these switches under a layer that is stronger than all of them."""
        return Switches((_layer(names, who, who), *self.layers))

    def of(self, item: Loaded) -> Switch | None:
        """Returns the switch that decides about a quirk; None if the user leaves it to its declaration."""
        return self._first(item.quirk.id, item.quirk.flag, item.distribution) if any(self.layers) else None

    def turns_off(self, distribution: str, quirk_id: str = "") -> Switch | None:
        """Returns the switch that turns off a distribution, or one quirk of it, so that it need not be loaded; None if none."""
        if any(switch.on for layer in self.layers for switch in layer.values()):
            return None  # what is forced may be in there
        return self._first(quirk_id, "", distribution)

    def _first(self, quirk_id: str, flag: str, distribution: str) -> Switch | None:
        names = (quirk_id, flag, *_of_distribution(distribution))
        return next((layer[name] for layer in self.layers for name in names if name in layer), None)

    def check(self, loaded: Iterable[Loaded], not_loaded: Sequence[tuple[str, str]] = ()) -> list[str]:
        """Makes sure that every name exists.

        Args:
            loaded: The quirks.
            not_loaded: Entry point and distribution of every plugin that is installed but broken or switched off. What it
                would declare is not known, so that a name that no other plugin has may be its.

        Returns:
            Warnings about names that could be those of plugins that were not loaded.

        Raises:
            UsageError: Names that do not exist; the message gives each with the nearest one.
        """
        known = {*ModelFlag, _THIRD_PARTY, _ALL, _DISTRIBUTION + BUILT_IN}
        for item in loaded:
            known |= {item.quirk.id, item.quirk.flag, _DISTRIBUTION + distribution_of(item.distribution)}
        for name, distribution in not_loaded:
            known |= {name, _DISTRIBUTION + distribution_of(distribution)}
        wrong: list[str] = []
        doubtful: list[str] = []
        for name, switch in (item for layer in self.layers for item in layer.items() if item[0] not in known):
            could_be = not_loaded and not name.startswith(_DISTRIBUTION)  # of distributions, metadata knows all
            (doubtful if could_be else wrong).append(f"{name!r} in {switch.layer}{nearest(name, known)}")
        if wrong:
            raise UsageError("no quirk, flag or distribution of that name: " + "; ".join([*wrong, *doubtful]))
        return [f"no quirk of that name, unless a plugin that was not loaded has it: {text}" for text in doubtful]


def _layer(names: SwitchNames, off: str, on: str) -> Mapping[str, Switch]:
    for given, layer in ((names.disable, off), (names.force, on)):
        if not all(map(str.strip, given)):
            raise UsageError(f"an empty name in {layer}; name a quirk, a flag, {_DISTRIBUTION}NAME, {_THIRD_PARTY} or {_ALL}")
    disabled, forced = set(_canonical(names.disable)), set(_canonical(names.force))
    if both := sorted(disabled & forced):
        raise UsageError(f"{', '.join(map(repr, both))} is turned off and on at once, by {off} and {on}")
    either = sorted(disabled | forced)
    return {name: Switch(on=name in forced, name=name, layer=on if name in forced else off) for name in either}


def _canonical(names: Iterable[str]) -> Iterator[str]:
    """A flag may be written in any case, a distribution as pip takes it; everything else is taken as it was typed."""
    for name in map(str.strip, names):
        if name.lower() in set(ModelFlag):
            yield name.lower()
        elif name.startswith(_DISTRIBUTION):
            yield _DISTRIBUTION + distribution_of(name.removeprefix(_DISTRIBUTION))
        else:
            yield name


def _of_distribution(distribution: str) -> tuple[str, ...]:
    """The names that take in every quirk of a distribution, the most specific first."""
    own = _DISTRIBUTION + distribution_of(distribution)
    return (own, _ALL) if distribution_of(distribution) == BUILT_IN else (own, _THIRD_PARTY, _ALL)
