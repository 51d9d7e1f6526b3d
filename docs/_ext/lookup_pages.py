"""What can be looked up: slots, facts, flags and the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from page_text import page, prose, table

from quirks_core.configuration.slots import SLOTS
from quirks_core.declaration.flags import ModelFlag
from quirks_core.facts.fact_table import FACTS, FAMILIES, FactSpec

_HELP_WIDTH = 100


def slots() -> str:
    """Returns the page of slots, facts and flags."""
    rows = []
    for slot in SLOTS.values():
        default = "left open" if slot.default is None else f"`{slot.default}`"
        rows.append([f"`{slot.name}`", slot.takes, default, prose(slot.help)])
    return page(
        "Slots, facts and flags",
        "A slot is what a quirk can adjust, under the name that a user types in a configuration. The fields of the "
        "configuration's sections are slots; two families are open. An unknown name is an error that says the nearest one.",
        "## Open families",
        "- `engine.<argument>`: every engine argument of the installed vLLM, with its type and default as its source gives "
        "them. Under `--assume` of another version a name is accepted, and the plan says "
        "that nobody checked it. In a configuration such an argument is typed in the section `engine`; `engine.vllm_kwargs` is "
        "an alias for that section.\n"
        "- `env.<NAME>`: every environment variable, except those that look like secrets (`*KEY`, `*TOKEN`, `*SECRET`, "
        "`*PASSWORD`, `*CREDENTIALS`), those that choose the code that runs (`PATH`, `PYTHON*`, `LD_*`, `DYLD_*`, `BASH_ENV`, "
        "`ENV`, `VLLM_PLUGINS`) and our own `MODEL_QUIRKS_*`.",
        "## What can be asked of a slot",
        "`Default` and `Require` take one of these. Several quirks on one slot are merged by the same table; what cannot be at "
        "once is a conflict that names everybody ([merge laws](../writing-a-quirk.md#merge-laws)).",
        table(
            ("notation", "the slot's value", "several quirks", "slots"),
            (
                ("`Require(slot, value)`", "equals the value", "equal values are credited to all", "any"),
                ("`Require(slot, {…})`", "has these keys", "key by key", "mappings"),
                ("`Require(slot, at_most=n)`", "is n at most", "the smallest bound", "numbers"),
                ("`Require(slot, at_least=n)`", "is n at least", "the largest bound", "numbers"),
                ("`Require(slot, one_of=[…])`", "is one of these; the first if the slot is open", "what all allow", "any"),
                ("`Require(slot, includes=[…])`", "has these members", "all members", "lists"),
            ),
        ),
        "## Slots of the configuration",
        table(("slot", "takes", "default", "what it sets"), rows),
        "## Facts",
        "What a match can ask for, by name; slots are facts, too (`setting(slot)`). A fact that cannot be told makes a "
        "condition unknown, and the plan says so.",
        table(("fact", "what it says", "unknown if"), [_fact(spec) for spec in (*FACTS.values(), *FAMILIES)]),
        "## Flags",
        "A flag is the behaviour that a quirk belongs to; a user can switch off a whole flag. A third party's own flag is "
        "written `distribution:name`.",
        ", ".join(f"`{flag}`" for flag in ModelFlag) + ".",
    )


def _fact(spec: FactSpec) -> list[str]:
    return [f"`{spec.name}{'…' if spec.name.endswith('.') else ''}`", spec.help, spec.unknown]


def command_line(parser: argparse.ArgumentParser) -> str:
    """Returns the page of the command line."""
    blocks = [f"```text\n{_help(parser)}\n```"]
    for name, verb in _verbs(parser):
        blocks += [f"## quirks {name}", f"```text\n{_help(verb)}\n```"]
    return page(
        "Command line",
        "What `--help` prints. Exit codes and switches are described in [production](../production.md).",
        *blocks,
    )


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _help(parser: argparse.ArgumentParser) -> str:
    """Formats the help at a fixed width: argparse takes the terminal's."""
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=_HELP_WIDTH)
    return parser.format_help().strip()
