"""Reads a configuration in YAML, and lays ``path=value`` texts over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from quirks_core.base import whole_file
from quirks_core.base.errors import UsageError, shown, words
from quirks_core.base.json_values import DEEPEST, is_too_deep
from quirks_core.base.text import one_line

#: Most bytes of a configuration; YAML is read slowly.
_MOST = 2**20
_TOO_DEEP = f"is nested deeper than {DEEPEST} levels"

_TEXT = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """Refuses what plain YAML takes for something else without a word.

    It would drop the first of two equal keys, a whole section perhaps; and ``{method:ngram}`` is a key
    ``method:ngram`` without a value.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, value in node.value:
            if node.flow_style and _is_plain(key) and ":" in key.value and _is_plain(value) and not value.value:
                name, _, rest = key.value.partition(":")
                tag = self.resolve(yaml.ScalarNode, rest, (True, False))  # type: ignore[no-untyped-call]
                right = f'{{{name}: {rest}}} or {{"{name}": {json.dumps(rest) if tag == _TEXT else rest}}}'
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is a key without a value, because no space follows the colon: write {right}",
                    problem_mark=key.start_mark,
                )
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is written twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Makes an error of YAML of what PyYAML's constructors raise: ``!!int x``, a number of 5000 digits."""
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise yaml.MarkedYAMLError(problem=words(error), problem_mark=node.start_mark) from None


# JSON has no dates. The table is its own, too: lm-format-enforcer, which vLLM imports, changes that of PyYAML.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)  # type: ignore[type-var]


def _is_plain(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None


def read_value(text: str) -> Any:
    """Reads one value.

    Raises:
        ValueError: It is not YAML, or is nested too deep; the message says why, behind the text.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader
    except RecursionError:
        raise ValueError(f"it {_TOO_DEEP}") from None
    except yaml.YAMLError as error:
        why = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        raise ValueError(f"{shown(text, 100)} is not valid YAML: {one_line(str(why))}") from None


def read_yaml(file: Path) -> dict[str, Any]:
    """Reads a file that holds a mapping.

    Raises:
        UsageError: It cannot be read, is not YAML, or holds something else.
    """
    try:
        values = yaml.load(whole_file.read(file, _MOST).decode(), _Loader)  # noqa: S506  # a SafeLoader
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
        value = read_value(raw)
    except ValueError as error:
        raise UsageError(f"--set {shown(text, 100)}: {error}") from None
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
