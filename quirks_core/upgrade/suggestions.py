"""How a change of a run is written: as an option of its command line, or as a setting of its configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quirks_core.configuration.slots import slot_named
from quirks_core.configuration.yaml_file import lay_over
from quirks_core.source.serve_options import Shape
from quirks_core.source.vllm_source import INSTALLED, VllmSource

#: What stands between a change and a remark on it.
REMARK = "   # "


def rewritten(run: Sequence[str] | Mapping[str, Any], variables: Mapping[str, str], changes: Iterable[str]) -> str:
    """Returns a run as it is to be written: a command line of a server, or a configuration in JSON.

    Args:
        run: The words after ``vllm serve``, or the configuration, in which arguments are renamed or left out already.
        variables: The variables that the run sets.
        changes: What is to be pasted by the report.
    """
    left, before, words, values = dict(variables), [], [], None
    if isinstance(run, Mapping):
        values = json.loads(json.dumps(run))
    else:
        words = list(run)
    for change in changes:
        text = change.partition(REMARK)[0]
        verb, _, rest = text.partition(" ")
        if verb == "export":
            name, _, value = rest.partition("=")
            left[name] = shlex.split(value)[0] if value else ""
        elif verb == "unset":
            left.pop(rest, None)
            before.append(text)
        elif verb == "--set" and values is not None:
            lay_over(values, shlex.split(rest)[0])
        elif text.startswith("--") and values is None:
            words += shlex.split(text)
    if values is not None:
        return json.dumps({**values, **({"env": left} if left else {})}, indent=2)
    assigned = [f"{name}={shlex.quote(value)}" for name, value in left.items()]
    return "\n".join([*before, " ".join([*assigned, "vllm serve", shlex.join(words)])])


@dataclass(frozen=True, slots=True)
class Form:
    """How changes are written.

    Attributes:
        is_command: The run is a command line of ``vllm serve``, not a configuration.
        source: The vLLM that the changes are for.
    """

    is_command: bool
    source: VllmSource = INSTALLED

    def set(self, slot: str, value: Any) -> str:
        """Sets a slot."""
        family, key = slot_named(slot).family, slot_named(slot).key
        if family == "env":
            return f"export {key}={shlex.quote(str(value))}"
        text = value if isinstance(value, str) else json.dumps(value)
        if not self.is_command or family != "engine":
            return f"--set {slot}={shlex.quote(text)}"
        option = self.source.option_of(key)
        name = option.name if option else f"--{key.replace('_', '-')}"
        if isinstance(value, bool) and (option is None or option.shape in (Shape.FLAG, Shape.SWITCH)):
            return name if value else f"--no-{name.removeprefix('--')}"
        return f"{name} {shlex.quote(text)}"

    def leave_out(self, slot: str) -> str:
        """Returns how to set a slot no longer."""
        key = slot_named(slot).key
        if slot_named(slot).family == "env":
            return f"unset {key}"
        return f"leave out --{key.replace('_', '-')}" if self.is_command else f"delete {slot} from the configuration"
