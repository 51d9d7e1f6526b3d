"""Plans an engine in ``EngineArgs.create_engine_config``, the one function that every way to an engine of vLLM calls."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from quirks_core.apply import process
from quirks_core.apply.handed_down import CARRIED, FRONT_END_VARIABLE, HOOK_VARIABLE, PLAN_VARIABLE
from quirks_core.apply.imports import wrap
from quirks_core.apply.process import environment
from quirks_core.apply.read_back import contradictions, read_configuration
from quirks_core.base.errors import QuirksError, ReceiptError, UsageError
from quirks_core.configuration.slots import Place, placed
from quirks_core.declaration.adjustments import Relation
from quirks_core.facts.model import ModelFacts
from quirks_core.hook import receipts, report, vllm_functions
from quirks_core.hook.arguments import engine_run, identity, purpose_of, put
from quirks_core.hook.explicit import typed_in
from quirks_core.hook.processes import plan_of, refuse
from quirks_core.hook.settings import HookSettings
from quirks_core.plan.formats import setting
from quirks_core.plan.records import Plan, ProcessPlan, Refusal, RefusedError, Status
from quirks_core.plan.switches import DISABLE_VARIABLE
from quirks_core.plugins.planning import make_plan

#: Which engine the plan in the environment is for; a process that makes an engine of the same arguments takes the plan over.
PLANNED_FOR = "MODEL_QUIRKS_PLANNED_FOR"
#: The workers of vLLM's Ray executor get variables with these prefixes.
_RAY = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
_OURS = "MODEL_QUIRKS"
#: Characters; Linux takes 128 KiB for one variable, and starts no process with more.
_MOST = 120_000
#: The engines of this process; patches and variables are the same for all of them.
_engines: list[tuple[ProcessPlan, weakref.ref[Any]]] = []


def install() -> None:
    """Wraps ``EngineArgs.create_engine_config``, now or as soon as vLLM's module is imported; a second call changes nothing."""
    wrap("vllm.engine.arg_utils:EngineArgs.create_engine_config", _create_engine_config)


def _create_engine_config(original: Callable[..., Any], arguments: Any, *args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("usage_context", "headless"), args, strict=False)) | kwargs
    plan = _prepare(arguments, given.get("usage_context"))
    config = original(arguments, *args, **kwargs)
    if plan is not None:
        check(plan, config)
        is_alone = _is_only_front_end(arguments, config) and not given.get("headless")
        if os.environ.get(FRONT_END_VARIABLE) != str(os.getpid()):  # else this process owns the engine
            environment.set(FRONT_END_VARIABLE, str(os.getpid()) if is_alone else "")
    return config


def _is_only_front_end(arguments: Any, config: Any) -> bool:
    """Returns whether this process alone sends requests to the engine, so that without it the engine has nothing to do.

    API servers in processes of their own outlive the process that started them, and a data-parallel rank must keep step with
    the others.
    """
    return config.parallel_config.data_parallel_size == 1 and getattr(arguments, "_api_process_rank", 0) >= 0


def check(plan: ProcessPlan, config: Any) -> None:
    """Holds an engine's new configuration against its plan, and remembers that the engine is there.

    Raises:
        ReceiptError: vLLM made something else of what a quirk set.
    """
    if wrong := list(contradictions(plan, read_configuration(config, plan.slots))):
        raise ReceiptError(f"vLLM changed what a quirk set: {'; '.join(wrong)}")
    _engines.append((plan, weakref.ref(config)))


def _prepare(arguments: Any, usage: Any) -> ProcessPlan | None:
    """Plans and applies, or takes over what the process that started this one has planned; None if nothing is in force."""
    if (carried := plan_of(arguments)) is not None:  # a program put it there, or a second call
        return carried
    settings = HookSettings.read()
    if settings is None:
        return None
    typed = typed_in(arguments)  # before anything is put there
    put(arguments, {} if settings.only_reports else settings.given)
    mine = identity(arguments)
    if os.environ.get(PLANNED_FOR) == mine and PLAN_VARIABLE in os.environ and not settings.only_reports:
        plan = ProcessPlan.read(os.environ[PLAN_VARIABLE], f"handed down in {PLAN_VARIABLE}")
        _into_force(arguments, plan, settings)
        return plan
    if problem := vllm_functions.problem():
        _untouched(problem, settings)
        return None
    try:
        ModelFacts.read(str(arguments.model), arguments.revision)
    except UsageError as error:
        _untouched(str(error), settings)
        return None
    purpose, why = purpose_of(arguments, settings, usage)
    planned = resolve(arguments, settings, purpose)
    applied = None if settings.only_reports else planned.for_processes
    if applied is not None:
        try:
            check_refusals(arguments, planned)
        except RefusedError as error:
            error.add_note(f"  purpose {purpose} ({why})")
            raise
        if settings.receipt is not None:
            receipts.begin(settings.receipt, keep_problems=settings.needs_receipt)
        hand_down(applied, {**placed(Place.VARIABLE, settings.given), PLANNED_FOR: mine})
        _into_force(arguments, applied, settings)
    report.log_plan(planned, typed, why, quiet=settings.is_quiet, only_reports=settings.only_reports)
    if applied is None and settings.needs_receipt:
        _untouched(f"{HOOK_VARIABLE}=report changes nothing", settings)
    return applied


def resolve(arguments: Any, settings: HookSettings, purpose: str) -> Plan:
    """Makes the plan of an engine; the environment counts as the user set it.

    Raises:
        UsageError, BrokenPluginsError, LockError: As for `quirks_core.plugins.planning.make_plan`.
    """
    return make_plan(engine_run(arguments, settings, purpose), environ=environment.original())


def check_refusals(arguments: Any, plan: Plan) -> None:
    """Raises what refuses a run, in the words of the program that made the arguments.

    Raises:
        RefusedError: The plan holds refusals.
    """
    if plan.refusals:
        as_option = typed_in(arguments).as_options
        raise RefusedError(tuple(_for_programs(refusal, plan, as_option=as_option) for refusal in plan.refusals))


def hand_down(plan: ProcessPlan, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Sets the variables of a plan in this process, and hands the plan down to the processes that it starts.

    Returns:
        What may not have its full effect, in words.

    Raises:
        QuirksError: Another engine of this process has other patches or variables, or the plan is too large for a variable;
            nothing was changed.
    """
    text, changes = plan.model_dump_json(), placed(Place.VARIABLE, plan.changes)
    if len(text) > _MOST:
        raise QuirksError(f"the plan has {len(text)} characters, and one variable takes {_MOST}: switch quirks off")
    _make_room(plan)
    for variable, value in {**variables, **changes, PLAN_VARIABLE: text}.items():
        environment.set(variable, value)
    prefixes = [item for item in os.environ.get(_RAY, "").split(",") if item]
    if _OURS not in prefixes:
        environment.set(_RAY, ",".join([*prefixes, _OURS]))
    late = "was set after vLLM was imported; this process may not see it"
    return tuple(f"env.{name} {late}" for name in changes) if "vllm" in sys.modules else ()


def carry(arguments: Any, plan: ProcessPlan) -> None:
    """Puts a plan on the arguments of an engine: the values of its slots, and the plan itself for every process."""
    put(arguments, plan.changes)
    more = arguments.additional_config
    if isinstance(more, dict):
        # It goes wherever the configuration goes, also to other machines, and is a part of vLLM's configuration hash: patched
        # code gets a compile cache of its own.
        arguments.additional_config = {**more, CARRIED: plan.model_dump(mode="json")}
    else:
        report.error(
            f"additional_config is a {type(more).__name__}, not a mapping: the plan reaches this machine's processes only"
        )


def _for_programs(refusal: Refusal, plan: Plan, *, as_option: bool) -> Refusal:
    """Writes a refusal for a program that has no options of ours: its own argument, and a variable as the switch."""
    switch = " or ".join(f"{DISABLE_VARIABLE}={','.join(ids)}" for ids in refusal.off)
    wanted = [item for item in plan.adjustments if item.slot == refusal.slot and item.status is Status.REFUSED]
    spelled = [setting(item.slot, item.value, as_option=as_option) for item in wanted if item.relation is Relation.EQUALS]
    remedy = "; here: ".join([refusal.remedy, *filter(None, spelled)])
    return refusal.model_copy(update={"remedy": remedy, "switch": switch})


def undo() -> None:
    """Takes patches off in this process and restores its environment."""
    process.undo()
    _engines.clear()


def _make_room(plan: ProcessPlan) -> None:
    """Takes what an engine left behind that is gone; two that are there must agree.

    Raises:
        QuirksError: They do not.
    """
    for other in (one for one in engines() if _process_wide(one) != _process_wide(plan)):
        raise QuirksError(
            f"this process has an engine with other patches or variables ({_listed(other)}; this one wants {_listed(plan)}), "
            "and a process has one set of them: delete that engine first, or start this one in a process of its own"
        )
    if not _engines:
        environment.restore()


def engines() -> list[ProcessPlan]:
    """Returns the plans of the engines of this process that are still there."""
    if any(alive() is not None for _, alive in _engines):
        gc.collect()  # one that was deleted may be waiting for it
    _engines[:] = [(one, alive) for one, alive in _engines if alive() is not None]
    return [one for one, _ in _engines]


def _into_force(arguments: Any, plan: ProcessPlan, settings: HookSettings) -> None:
    process.carry_out(plan)
    carry(arguments, plan)
    receipts.add(settings.receipt, process.acknowledgement())


def _untouched(reason: str, settings: HookSettings) -> None:
    """Leaves an engine as it is and logs it; one that must have a receipt does not start.

    Raises:
        ReceiptError: It must have one.
    """
    if settings.needs_receipt:
        refuse(reason, settings)
    report.error(f"THIS ENGINE STARTS WITHOUT QUIRKS: {reason}")


def _process_wide(plan: ProcessPlan) -> Mapping[str, Any]:
    return {**placed(Place.VARIABLE, plan.changes), **{patch.target: (patch.source, patch.quirk.id) for patch in plan.patches}}


def _listed(plan: ProcessPlan) -> str:
    names = {patch.quirk.id for patch in plan.patches} | {f"env.{name}" for name in placed(Place.VARIABLE, plan.changes)}
    return ", ".join(sorted(names)) or "none"
