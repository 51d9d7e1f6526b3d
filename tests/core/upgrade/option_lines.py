"""Command lines that set every option of two releases, and every key of the configurations in them, one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: Options that end the parser, or read files.
_LEFT_OUT = {"help", "config", "model", "tokenizer"}
#: Values that some option or key takes; what an option refuses is a case as well.
_VALUES = ("1", "auto", "x")
_NESTED = (1, True, "x")


def lines(*descriptions: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns the words after the model, each line once, in a fixed order."""
    return sorted({line for description in descriptions for line in _lines(description)})


def _lines(description: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    configurations = description["configurations"]
    for option in description["options"]:
        if option["dest"] in _LEFT_OUT:
            continue
        if option["is_flag"]:
            yield from ((name,) for name in option["names"])
            continue
        name = next((name for name in option["names"] if name.startswith("--")), option["names"][0])
        for value in option["choices"] or description["registries"].get(option["dest"]) or _VALUES:
            if value != "None":
                yield (name, str(value))
        for key, default in configurations.get(_owner(option["dest"], configurations), {}).items():
            if not key.startswith("_"):
                values = _NESTED if default is None else [default]
                yield from ((name, json.dumps({key: value})) for value in values)


def _owner(destination: str, configurations: Mapping[str, Any]) -> str:
    """The configuration that an option takes: ``speculative_config`` takes a ``SpeculativeConfig``."""
    names = {name.lower(): name for name in configurations}
    return names.get(destination.replace("_", ""), "")
