"""Off switches: which quirks and flags the user disabled, and in which layer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quirks_core.errors import UsageError, nearest
from quirks_core.flags import ModelFlag
from quirks_core.quirk import Quirk

#: Comma-separated quirk ids and flags to disable.
VARIABLE = "MODEL_QUIRKS_DISABLE"


@dataclass(frozen=True, slots=True)
class Switches:
    """The names that the user switched off, each with the layer that did it.

    Attributes:
        disabled: Layer by quirk id or flag; the strongest layer where several name the same.
    """

    disabled: Mapping[str, str]

    @classmethod
    def gather(
        cls,
        *,
        command_line: Iterable[str] = (),
        config_file: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Switches:
        """Collects the switches; command line beats environment beats configuration file."""
        variable = (os.environ if environ is None else environ).get(VARIABLE, "")
        layers = {
            "the configuration (quirks.disable)": config_file,
            f"the environment ({VARIABLE})": variable.split(","),
            "the command line (--disable)": command_line,
        }
        return cls({_canonical(name): layer for layer, names in layers.items() for name in names if name.strip()})

    def layer(self, quirk: Quirk) -> str | None:
        """Returns the layer that switches a quirk off, by its id or its flag; None if it is on."""
        return self.disabled.get(quirk.id) or self.disabled.get(quirk.flag)

    def check(self, quirks: Iterable[Quirk], broken: Iterable[str] = ()) -> None:
        """Makes sure that every name exists: as a quirk, as a flag, or as the entry point of a broken plugin.

        Raises:
            UsageError: Names that do not exist; the message gives each with the nearest one.
        """
        quirks = tuple(quirks)
        known = {quirk.id for quirk in quirks} | {quirk.flag for quirk in quirks} | set(ModelFlag) | set(broken)
        wrong = [f"{name!r} in {layer}{nearest(name, known)}" for name, layer in self.disabled.items() if name not in known]
        if wrong:
            raise UsageError("no quirk or flag of that name: " + "; ".join(wrong))


def _canonical(name: str) -> str:
    """A flag may be written in any case; everything else is taken as it was typed."""
    name = name.strip()
    return name.lower() if name.lower() in set(ModelFlag) else name
