"""``quirks --help``: the commands in groups, those of other packages in one of their own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint

from quirks_core.declaration.flags import BUILT_IN

#: Our commands, by what a user wants; most of those that start engines are in model-quirks-lab.
_GROUPS: Mapping[str, Sequence[str]] = {
    "look at quirks and plans": ("list", "plan", "explain", "show", "upgrade"),
    "run, prove and compare on engines": ("run", "prove", "audit", "parity", "weights", "migrate", "bisect"),
    "maintain an installation or a package": ("doctor", "lock", "new", "validate", "fingerprint"),
}
_OTHERS = "commands of other packages"
#: What ``quirks`` alone prints.
FIRST_STEPS = """\
quirks plan --model FOLDER|ID           what applies to a run and why; or: quirks plan -- vllm serve MODEL …
quirks explain QUIRK                    what goes wrong without a quirk, and what it changes
quirks run -- COMMAND …                 a program with quirks in every vLLM engine that it starts (or MODEL_QUIRKS=on)
quirks doctor                           whether this installation is sound
quirks --help                           all commands"""


class GroupedHelp(argparse.ArgumentParser):
    """A parser whose help lists its commands in groups.

    Attributes:
        commands: By the title of a group, name and help of each command.
    """

    commands: Mapping[str, Sequence[tuple[str, str]]] = {}

    def format_help(self) -> str:
        """Formats the help: usage, description, the groups of commands, options."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, listed in self.commands.items():
            formatter.start_section(title)
            formatter.add_arguments([argparse.Action([], name, metavar=name, help=text) for name, text in listed])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        return formatter.format_help()


def in_groups(found: Mapping[str, EntryPoint]) -> dict[str, list[str]]:
    """Sorts commands into the groups of the help.

    Returns:
        Their names by the title of the group, without empty groups.
    """
    ours = {name for name, point in found.items() if point.dist is None or point.dist.name == BUILT_IN}
    groups = {title: [name for name in names if name in ours] for title, names in _GROUPS.items()}
    listed = {name for names in groups.values() for name in names}
    groups[_OTHERS] = [name for name in found if name not in listed]
    return {title: names for title, names in groups.items() if names}
