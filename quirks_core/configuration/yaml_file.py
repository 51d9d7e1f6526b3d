"""Reads a configuration in YAML, and lays ``path=value`` texts over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from quirks_core.base.errors import UsageError, shown
from quirks_core.base.text import one_line


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice; YAML would drop the first one, a whole section perhaps."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is written twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


# JSON has no dates. The table is its own, too: lm-format-enforcer, which vLLM imports, changes that of PyYAML.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)  # type: ignore[type-var]


def read_value(text: str, where: str) -> Any:
    """Reads one value.

    Raises:
        UsageError: It is not YAML; the message says where, and why, behind the text.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        why = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        raise UsageError(f"{where}: {shown(text, 100)} is not valid YAML: {one_line(str(why))}") from None


def read_yaml(file: Path) -> dict[str, Any]:
    """Reads a file that holds a mapping.

    Raises:
        UsageError: It cannot be read, is not YAML, or holds something else.
    """
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), _Loader)  # noqa: S506  # a SafeLoader
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        what = "cannot be read" if isinstance(error, OSError) else "is not valid YAML"
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UsageError(f"configuration {file} {what}: {why}") from None
    if values is None:
        raise UsageError(f"configuration {file} is empty")
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
    value = read_value(raw, f"--set {shown(text, 100)}")
    *parents, key = path.strip().split(".")
    here = values
    for parent in parents:
        below = here.setdefault(parent, {})
        if not isinstance(below, dict):
            if parent != "model":
                raise UsageError(f"--set {text!r}: {parent!r} has no keys")
            below = here[parent] = {"path": str(below)}
        here = below
    here[key] = value
