"""The hook's settings in the environment: MODEL_QUIRKS and the variables beside it, read and checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from quirks_core.apply.handed_down import HOOK_VARIABLE
from quirks_core.base.errors import UsageError, nearest
from quirks_core.base.text import one_line
from quirks_core.configuration.config import Purpose
from quirks_core.configuration.slots import SLOTS, Place, Slot, engine_problem, problem_of_name, slot_named
from quirks_core.configuration.yaml_file import read_value
from quirks_core.facts.trainers import TRAINERS, Trainer, find
from quirks_core.facts.trainers import VARIABLE as TRAINER_VARIABLE
from quirks_core.ledger.account import LEDGER_VARIABLE, LedgerSettings

#: Values of slots, of the purpose and of the recipe, as ``slot=value;slot=value``.
SET_VARIABLE = "MODEL_QUIRKS_SET"
#: File that receipts are written to.
RECEIPT_VARIABLE = "MODEL_QUIRKS_RECEIPT"
#: Set to 1, an engine that cannot have a receipt does not start.
REQUIRE_VARIABLE = "MODEL_QUIRKS_REQUIRE_RECEIPT"
#: How much is logged: all, or quiet for one line.
LOG_VARIABLE = "MODEL_QUIRKS_LOG"
#: Variables of the hook, all of them the user's to set.
VARIABLES = (HOOK_VARIABLE, LEDGER_VARIABLE, LOG_VARIABLE, RECEIPT_VARIABLE, REQUIRE_VARIABLE, SET_VARIABLE, TRAINER_VARIABLE)

_PURPOSES: tuple[str, ...] = get_args(Purpose)
#: What MODEL_QUIRKS can be set to.
MODES = ("on", *_PURPOSES, "report", "off")
_BESIDE_SLOTS = {"purpose": Slot("purpose", Purpose), "recipe": Slot("recipe", str)}


@dataclass(frozen=True, slots=True)
class HookSettings:
    """What the user set for the hook.

    Attributes:
        purpose: What the engine is for; None if its arguments decide.
        why: The variable that sets the purpose; empty if none does.
        only_reports: Nothing is changed; what would be done is printed.
        given: Values by slot that the user gave in MODEL_QUIRKS_SET; ``env.NAME`` is a variable.
        trainer: The trainer that starts the engine, named in MODEL_QUIRKS_TRAINER or found by what is imported; its facts
            count in a rollout.
        recipe: Name of the training recipe.
        receipt: File that receipts are written to.
        needs_receipt: An engine that cannot have a receipt does not start.
        is_quiet: One line for each engine.
    """

    purpose: Purpose | None = None
    why: str = ""
    only_reports: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)
    trainer: Trainer | None = None
    recipe: str | None = None
    receipt: Path | None = None
    needs_receipt: bool = False
    is_quiet: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> HookSettings | None:
        """Reads the variables of an environment, `os.environ` if None; returns None if MODEL_QUIRKS is not set, or off.

        Raises:
            UsageError: One of them has a value that it cannot have; the message lists all, each with the nearest one.
        """
        environ = os.environ if environ is None else environ
        problems: list[str] = []
        mode = _one_of(environ, HOOK_VARIABLE, MODES, problems) or "off"
        if mode == "off" and not problems:
            return None
        log = _one_of(environ, LOG_VARIABLE, ("all", "quiet"), problems)
        needs = _one_of(environ, REQUIRE_VARIABLE, ("0", "1"), problems) == "1"
        trainer = _one_of(environ, TRAINER_VARIABLE, tuple(sorted(TRAINERS)), problems)
        given = read_given(environ.get(SET_VARIABLE, ""), problems)
        try:
            LedgerSettings.read(environ)
        except UsageError as error:
            problems.append(str(error))
        if problems:
            raise UsageError("; ".join(problems))
        purpose, recipe = given.pop("purpose", None), given.pop("recipe", None)
        why = SET_VARIABLE
        if not purpose and mode in _PURPOSES:
            purpose, why = mode, f"{HOOK_VARIABLE}={mode}"
        elif not purpose and trainer:
            purpose, why = "rollout", f"{TRAINER_VARIABLE}={trainer}"
        file = environ.get(RECEIPT_VARIABLE)
        return cls(
            purpose=cast("Purpose | None", purpose),
            why=why if purpose else "",
            only_reports=mode == "report",
            given=given,
            trainer=TRAINERS[trainer] if trainer else find({}, sys.modules),
            recipe=recipe,
            receipt=Path(file) if file else None,
            needs_receipt=needs,
            is_quiet=log == "quiet",
        )


def read_given(text: str, problems: list[str]) -> dict[str, Any]:
    """Reads checked values by slot, and ``purpose`` and ``recipe``, from ``slot=value;slot=value``, values in YAML.

    `problems` gets a line for everything that is wrong.
    """
    found: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, raw = (part.strip() for part in item.partition("="))
        if not equals:
            problems.append(f"{SET_VARIABLE}: {item!r} is not of the form slot=value")
            continue
        try:
            value = read_value(raw, f"{SET_VARIABLE}: {name}")
        except UsageError as error:
            problems.append(str(error))
            continue
        if value is None and "none" in slot_named(name).choices:
            value = "none"
        if slot_named(name).place is Place.VARIABLE and isinstance(value, int | float) and not isinstance(value, bool):
            value = raw  # in an environment it is a text
        if name in found:
            problems.append(f"{SET_VARIABLE}: {name} is given twice")
        elif problem := problem_of_given(name, value):
            problems.append(f"{SET_VARIABLE}: {problem}")
        else:
            found[name] = value
    return found


def problem_of_given(name: str, value: Any) -> str | None:
    """Returns why a slot, the purpose or the recipe cannot have that value; None if it can."""
    if name in _BESIDE_SLOTS:
        return _BESIDE_SLOTS[name].problem(value)
    if name not in SLOTS and slot_named(name).family not in ("engine", "env"):
        return f"unknown slot {name!r}{nearest(name, (*SLOTS, *_BESIDE_SLOTS))}"
    return problem_of_name(name) or slot_named(name).problem(value) or engine_problem(name, value)


def _one_of(environ: Mapping[str, str], variable: str, known: tuple[str, ...], problems: list[str]) -> str:
    """Returns the variable's value in lower case; one that it cannot have becomes a problem."""
    text = environ.get(variable, "").strip().lower()
    if text and text not in known:
        problems.append(f"{variable}={one_line(environ[variable])!r}: it takes {', '.join(known)}{nearest(text, known)}")
        return ""
    return text
