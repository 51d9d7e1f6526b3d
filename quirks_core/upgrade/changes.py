"""Changes of a run: how each is written, and the run that has them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quirks_core.configuration.slots import slot_named
from quirks_core.source.serve_options import Shape
from quirks_core.source.vllm_source import INSTALLED, VllmSource


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a run. What is left out or set is a slot, or an option of the server alone (``--port``).

    Attributes:
        old: What is left out; empty if nothing is.
        new: What is set; empty if nothing is.
        value: The value that it is set to.
        remark: What is to be known of it.
    """

    old: str = ""
    new: str = ""
    value: Any = None
    remark: str = ""

    @property
    def argument(self) -> str:
        """The argument of the engine, or the option, that is left out or set, as Python names it."""
        return _argument(self.old or self.new)


@dataclass(frozen=True, slots=True)
class Form:
    """How a run is written.

    Attributes:
        is_command: The run is a command line of ``vllm serve``, not a configuration.
        source: The vLLM that it is for.
    """

    is_command: bool
    source: VllmSource = INSTALLED

    def paste(self, change: Change) -> str:
        """Returns a change, ready to be pasted."""
        text = self._set(change.new, change.value) if change.new else self._leave_out(change.old)
        return f"{text}   # {change.remark}" if change.remark else text

    def _set(self, name: str, value: Any) -> str:
        if name.startswith("env."):
            return f"export {slot_named(name).key}={shlex.quote(str(value))}"
        if name.startswith("--") or (self.is_command and name.startswith("engine.")):
            return shlex.join(self.words(name, value))
        return f"--set {name}={shlex.quote(_text(value))}"

    def _leave_out(self, name: str) -> str:
        if name.startswith("env."):
            return f"unset {slot_named(name).key}"
        if self.is_command or name.startswith("--"):
            return f"leave out {_dashed(name)}"
        return f"delete {name} from the configuration"

    def words(self, name: str, value: Any) -> list[str]:
        """Returns the words of a command line that set an argument or an option."""
        option = self.source.option_of(_argument(name))
        typed = option.name if option else _dashed(name)
        if isinstance(value, bool) and (option is None or option.shape in (Shape.FLAG, Shape.SWITCH)):
            return [typed if value else f"--no-{typed.removeprefix('--')}"]
        is_listed = isinstance(value, list) and option is not None and option.shape is Shape.VALUES
        return [typed, *map(_text, value if is_listed else [value])]

    def changed_words(self, words: Sequence[str], changes: Iterable[Change], before: VllmSource) -> tuple[str, ...]:
        """Returns the words after ``vllm serve`` with changes; what is set comes last."""
        left = list(words)
        for change in changes:
            for name in (one for one in (change.old, change.new) if one and not one.startswith("env.")):
                option = before.option_of(_argument(name))
                left = list(_without_option(left, set(option.names) if option else {_dashed(name)}))
            if change.new and not change.new.startswith("env."):
                left += self.words(change.new, change.value)
        return tuple(left)


def changed_values(values: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """Returns a configuration, a mapping for each family of slots, with changes."""
    left = dict(values)
    for change in changes:
        if change.old:
            family, *keys = change.old.split(".")
            left[family] = without(left.get(family, {}), keys)
        if change.new:
            *parents, key = change.new.split(".")
            here = left
            for parent in parents:
                here[parent] = here = dict(here.get(parent) or {})
            here[key] = change.value
    return left


def written_command(words: Sequence[str], variables: Mapping[str, str], changes: Iterable[Change]) -> str:
    """Returns a command line with changed words and with the variables that are left, and before it those to unset."""
    of_variables = [one for one in changes if (one.old or one.new).startswith("env.")]
    left = changed_values({"env": variables}, of_variables)["env"]
    assigned = [f"{name}={shlex.quote(str(value))}" for name, value in left.items()]
    unset = [Form(is_command=True).paste(one) for one in of_variables if one.old]
    return "\n".join([*unset, " ".join([*assigned, "vllm serve", shlex.join(words)])])


def without(value: Any, keys: Sequence[str]) -> Any:
    """Returns a mapping without what a path of keys leads to; mappings that this leaves empty go as well."""
    if not isinstance(value, Mapping) or keys[0] not in value:
        return value
    rest = {key: inner for key, inner in value.items() if key != keys[0]}
    if len(keys) > 1 and (inner := without(value[keys[0]], keys[1:])):
        rest[keys[0]] = inner
    return rest


def _without_option(words: Sequence[str], names: set[str]) -> Iterator[str]:
    is_left_out = False
    for word in words:
        if word.startswith("-"):
            name = word.partition("=")[0].partition(".")[0]
            name = name.replace("_", "-") if name.startswith("--") else name
            is_left_out = name in names or name.replace("--no-", "--", 1) in names
        if not is_left_out:
            yield word


def _argument(name: str) -> str:
    return name[2:].replace("-", "_") if name.startswith("--") else name.split(".")[1]


def _dashed(name: str) -> str:
    return f"--{_argument(name).replace('_', '-')}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
