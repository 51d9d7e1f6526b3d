"""Reads the facts of a run from vLLM's ``EngineArgs``, and puts the values of a plan onto them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from quirks_core.apply.read_back import UNREADABLE, explicit, plain
from quirks_core.base import json_values
from quirks_core.base.errors import QuirksError
from quirks_core.base.json_values import sha256
from quirks_core.configuration.engine_run import EngineRun
from quirks_core.configuration.sections import EngineSection
from quirks_core.configuration.slots import Place, engine_problem, is_slot, placed, slot_named
from quirks_core.hook import trainer_process
from quirks_core.hook.explicit import NO_SETTINGS, typed_in
from quirks_core.hook.settings import HookSettings
from quirks_core.hook.trainer_process import Read

#: The arguments that are facts also where they are not typed: quirks depend on their sizes and flags.
_ALWAYS = {"load_format"} | {name for name, field in EngineSection.model_fields.items() if field.default is not None}


def engine_run(arguments: Any, settings: HookSettings, purpose: str) -> EngineRun:
    """Makes the configuration of an engine from its ``EngineArgs``, which have what the user set in MODEL_QUIRKS_SET.

    Raises:
        UsageError: A value that the user gave makes no sense.
    """
    given = placed(Place.ARGUMENT, settings.given).keys()
    of_trainer = settings.trainer.engine_defaults if settings.trainer is not None else {}  # where its user set nothing
    left_open = {name for name, value in of_trainer.items() if plain(getattr(arguments, name, None)) == value}
    names = (typed_in(arguments).names - left_open) | given
    values: dict[str, Any] = {"parallel": {"dp_strategy": "engine"}}
    values["engine"] = {"async_engine": _is_asynchronous(arguments), **_engine_values(arguments, names)}
    preset = _of_trainer(settings, purpose, arguments)
    for slot, value in {**{slot: one.value for slot, one in preset.items()}, **settings.given}.items():
        if (family := slot_named(slot).family) != "engine":
            values.setdefault(family, {})[slot_named(slot).key] = value
    model = {"path": str(arguments.model), "revision": arguments.revision, "tokenizer": arguments.tokenizer}
    mine = {f"engine.{name}" for name in names}
    mine |= {"engine.head_dtype"} if "hf_overrides" in names else set()
    # The trainer sends what it sends, so a quirk must not require something else of it where it has another cure.
    typed = {*mine, *preset, *settings.given}
    values |= {"model": model, "purpose": purpose, "recipe": settings.recipe}
    return EngineRun.given(values, typed, {slot: one.source for slot, one in preset.items() if slot not in settings.given})


def _of_trainer(settings: HookSettings, purpose: str, arguments: Any) -> dict[str, Read]:
    """Returns what is known of the trainer, by slot: its preset, and how it computes in this process.

    Its defaults are assumed of an engine in bfloat16 alone: whoever changed the engine's dtype has changed the trainer's, too.
    """
    trainer = settings.trainer
    if purpose != "rollout":
        return {}
    read = trainer_process.precision(trainer)
    found: dict[str, Read] = {}
    if trainer is not None:
        known = {**trainer.facts, "train.framework": trainer.name}
        found = {slot: Read(value, trainer.source) for slot, value in known.items()}
        if not read and plain(arguments.dtype) in ("auto", "bfloat16"):
            found |= {slot: Read(value, f"{trainer.name}'s default") for slot, value in trainer.numerics.items()}
    return found | trainer_process.sampling(trainer) | read


def purpose_of(arguments: Any, settings: HookSettings, usage: Any) -> tuple[str, str]:
    """Returns what an engine is for, and how that is known."""
    if settings.purpose is not None:
        purpose, why = settings.purpose, settings.why
    elif signs := _signs_of_a_trainer(arguments):
        purpose, why = "rollout", f"a sign of a trainer: {', '.join(signs)}"
    else:
        context = str(getattr(usage, "value", usage) or "")
        if context == "OPENAI_API_SERVER" or (context != "OPENAI_BATCH_RUNNER" and _is_asynchronous(arguments)):
            return "serve", "no sign of a trainer"
        return "eval", "no sign of a trainer, and no server"
    facts = f"; facts of {settings.trainer.name}" if settings.trainer is not None and purpose == "rollout" else ""
    return purpose, f"{why}{facts}"


def identity(arguments: Any) -> str:
    """Returns a digest of all arguments, the same in a process that was started with the same command line."""
    names = [field.name for field in fields(arguments) if not field.name.startswith("_")]  # those count API servers
    values = {name: _readable(getattr(arguments, name)) for name in names}
    return sha256({name: value for name, value in values.items() if name not in NO_SETTINGS - {"model", "revision"}})


def put(arguments: Any, changes: Mapping[str, Any]) -> None:
    """Puts the values of slots onto an ``EngineArgs``; those that are none of its arguments are left out.

    Raises:
        QuirksError: A value cannot be put there, because a function of the user's stands in the place of the setting.
    """
    for slot, value in changes.items():
        place, name = slot_named(slot).place, slot_named(slot).key
        if place is Place.OVERRIDE:
            if callable(arguments.hf_overrides):
                raise QuirksError(f"{slot} cannot be set: hf_overrides is a function; have it set {name} to {value!r}")
            arguments.hf_overrides = {**(arguments.hf_overrides or {}), name: value}
        if place is not Place.ARGUMENT:
            continue
        now = getattr(arguments, name)
        if is_dataclass(now) and not isinstance(now, type) and isinstance(value, dict):
            value = type(now)(**{**explicit(now), **value})
        setattr(arguments, name, value)


def _signs_of_a_trainer(arguments: Any) -> list[str]:
    """Returns the arguments that only a trainer that updates weights has a use for."""
    signs = {
        "weight_transfer_config": getattr(arguments, "weight_transfer_config", None) is not None,
        "load_format=dummy": plain(arguments.load_format) == "dummy",
        "enable_sleep_mode": bool(arguments.enable_sleep_mode),
        "worker_extension_cls": bool(arguments.worker_extension_cls),
        "distributed_executor_backend=external_launcher": arguments.distributed_executor_backend == "external_launcher",
    }
    return [name for name, is_there in signs.items() if is_there]


def _is_asynchronous(arguments: Any) -> bool:
    """Returns whether the arguments are those of an asynchronous engine."""
    return any(kind.__name__ == "AsyncEngineArgs" for kind in type(arguments).__mro__)


def _engine_values(arguments: Any, names: frozenset[str] | set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sorted((names | _ALWAYS) - NO_SETTINGS):
        slot = f"engine.{name}"
        value = plain(getattr(arguments, name, None))
        if value is None or value is UNREADABLE or not is_slot(slot) or json_values.problem(value):
            continue
        # vLLM has taken the value. Where our reading of its types is narrower, the value is no fact, and no error either.
        if slot_named(slot).problem(value) or engine_problem(slot, value):
            continue
        found[name] = value
    if not found.get("hf_overrides"):
        found.pop("hf_overrides", None)
    return found


def _readable(value: Any) -> Any:
    # vLLM changes its configuration objects while it makes an engine's configuration of them, also those of a command line.
    found = UNREADABLE if is_dataclass(value) else plain(value)
    return f"a {type(value).__qualname__}" if found is UNREADABLE else found
