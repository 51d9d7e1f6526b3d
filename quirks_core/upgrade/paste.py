"""How a change of a run is written: as an option of its command line, or as a setting of its configuration."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from quirks_core.configuration.slots import ENGINE, ENV
from quirks_core.source.serve_options import Shape
from quirks_core.source.vllm_source import INSTALLED, VllmSource


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
        if slot.startswith(ENV):
            return f"export {slot.removeprefix(ENV)}={shlex.quote(str(value))}"
        text = value if isinstance(value, str) else json.dumps(value)
        if not self.is_command or not slot.startswith(ENGINE):
            return f"--set {slot}={shlex.quote(text)}"
        option = self.source.option_of(slot.removeprefix(ENGINE))
        name = option.name if option else self._option(slot)
        if isinstance(value, bool) and (option is None or option.shape in (Shape.FLAG, Shape.SWITCH)):
            return name if value else f"--no-{name.removeprefix('--')}"
        return f"{name} {shlex.quote(text)}"

    def leave_out(self, slot: str) -> str:
        """Says that a slot is to be set no longer."""
        if slot.startswith(ENV):
            return f"unset {slot.removeprefix(ENV)}"
        return f"leave out {self._option(slot)}" if self.is_command else f"delete {slot} from the configuration"

    def _option(self, slot: str) -> str:
        return f"--{slot.removeprefix(ENGINE).replace('_', '-')}"
