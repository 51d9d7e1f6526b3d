"""Reads a configuration in YAML, and lays ``path=value`` texts over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from quirks_core import whole_file
from quirks_core.errors import UsageError, shown, words
from quirks_core.json_values import DEEPEST, is_too_deep

#: Most bytes of a configuration; YAML is read slowly.
_MOST = 2**20
_TOO_DEEP = f"is nested deeper than {DEEPEST} levels"


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is written twice: plain YAML would drop the first, a whole section perhaps, in silence."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is written twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def parse_yaml(text: str) -> Any:
    """Parses YAML.

    Raises:
        yaml.YAMLError: It is none, or holds a value that PyYAML cannot make, such as ``!!int x`` or a number of 5000 digits.
        RecursionError: It is nested too deep.
    """
    try:
        return yaml.load(text, _UniqueKeys)  # noqa: S506  # a SafeLoader
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # of its constructors
        raise yaml.YAMLError(words(error)) from None


def read_yaml(file: Path) -> dict[str, Any]:
    """Reads a file that holds a mapping.

    Raises:
        UsageError: It cannot be read, is not YAML, or holds something else.
    """
    try:
        values = parse_yaml(whole_file.read(file, _MOST).decode())
    except OSError as error:
        raise UsageError(f"configuration {file} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration {file} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"configuration {file} {_TOO_DEEP}") from None
    if is_too_deep(values):
        raise UsageError(f"configuration {file} {_TOO_DEEP}")
    if not isinstance(values, dict):
        raise UsageError(f"configuration {file} must hold a mapping, not {type(values).__name__}")
    return values


def lay_over(values: dict[str, Any], text: str) -> None:
    """Sets one ``path=value`` in nested mappings.

    Raises:
        UsageError: The text is not of that form.
    """
    path, equals, raw = text.partition("=")
    if not equals or not path:
        raise UsageError(f"--set {text!r}: write slot=value, for example engine.load_format=dummy")
    try:
        value = parse_yaml(raw)
    except yaml.YAMLError:
        raise UsageError(f"--set {shown(text, 100)}: {shown(raw, 100)} is not valid YAML") from None
    except RecursionError:
        raise UsageError(f"--set {shown(text, 100)} {_TOO_DEEP}") from None
    *parents, key = path.strip().split(".")
    if len(parents) > DEEPEST or is_too_deep(value):
        raise UsageError(f"--set {shown(text, 100)} {_TOO_DEEP}")
    here = values
    for parent in parents:
        below = here.setdefault(parent, {})
        if not isinstance(below, dict):
            if parent != "model":
                raise UsageError(f"--set {text!r}: {parent!r} has no keys")
            below = here[parent] = {"path": str(below)}
        here = below
    here[key] = value
