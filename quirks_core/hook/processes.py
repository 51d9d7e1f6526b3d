"""Puts the plan of an engine into force in each of its processes, and has every engine core prove that it is.

The plan is in the engine's configuration (``additional_config``), which vLLM sends to all of them. After the weights are loaded
and before anything is computed, the core queries every worker by vLLM's own ``collective_rpc``. Who started the engine need not
know of it, and ``worker_extension_cls`` stays free.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from quirks_core.apply import process
from quirks_core.apply.handed_down import CARRIED, FRONT_END_VARIABLE
from quirks_core.apply.imports import wrap
from quirks_core.apply.parent_watchdog import end_with_parent
from quirks_core.apply.read_back import contradictions, read_configuration
from quirks_core.base.errors import ReceiptError
from quirks_core.configuration.slots import slot_named
from quirks_core.facts.model_runner import MODEL_RUNNER, runner_of
from quirks_core.hook import accounts, receipts, report, worker_calls
from quirks_core.hook.settings import HookSettings
from quirks_core.plan.receipt import Acknowledgement, Receipt
from quirks_core.plan.records import ProcessPlan

_NO_PLAN = "no plan was made for it, because its configuration was made by something that the hook does not reach"
#: How vLLM names the processes of engine cores.
_CORE = "EngineCore"
_OTHER_RUNNER = (
    "THE PLAN WAS MADE FOR MODEL RUNNER {}, AND THE ENGINE USES {}: quirks that hold for one of them may be missing; set "
    "VLLM_USE_V2_MODEL_RUNNER=0 or 1, so that both agree"
)


def install() -> None:
    """Puts the wrappers on, now or as soon as vLLM's modules are imported; a second call changes nothing."""
    # Not on EngineCore.__init__: vLLM loads plugins inside of it, so a wrapper would come too late.
    wrap("vllm.v1.executor.abstract:Executor.__init__", _init_executor)
    wrap("vllm.v1.executor.abstract:Executor.initialize_from_config", _initialize_from_config)
    # A spawned worker loads plugins inside of init_worker, so that it is wrapped too late for that; init_device comes next.
    wrap("vllm.v1.worker.worker_base:WorkerWrapperBase.init_worker", _init_worker)
    wrap("vllm.v1.worker.worker_base:WorkerWrapperBase.init_device", _init_device)
    wrap("vllm.v1.engine.core:EngineCore.set_weight_version", accounts.set_weight_version)  # from 0.27 on
    wrap("vllm.v1.core.sched.scheduler:Scheduler.add_request", accounts.add_request)


def plan_of(config: Any) -> ProcessPlan | None:
    """Returns the plan that the arguments or the configuration of an engine carry; None if there is none."""
    more = getattr(config, "additional_config", None)
    carried = more.get(CARRIED) if isinstance(more, dict) else None
    return None if carried is None else ProcessPlan.model_validate(carried)


def acknowledged(worker: Any) -> dict[str, Any]:
    """Runs in a worker, through ``collective_rpc``: returns what its process carries out, and what its configuration holds."""
    plan = plan_of(worker.vllm_config)
    engine = read_configuration(worker.vllm_config, plan.slots) if plan is not None else {}
    if (runner := runner_of(getattr(worker, "model_runner", None))) is not None:
        engine[MODEL_RUNNER] = runner
    return process.acknowledgement(engine).model_dump(mode="json")


def prove(executor: Any) -> Receipt | None:
    """Queries every worker of an engine for what it carries out; returns the receipt, or None if the engine has no plan.

    Raises:
        ReceiptError: A process carries out another plan, or none, or has another value than a quirk set.
    """
    config = executor.vllm_config
    plan = plan_of(config)
    settings = HookSettings.read() or HookSettings()
    if plan is None:
        return None
    core = process.acknowledgement(read_configuration(config, plan.slots))
    workers = [Acknowledgement.model_validate(row) for row in executor.collective_rpc(acknowledged)]
    # Where the core is its own worker, it has answered twice.
    core = next((row for row in workers if (row.pid, row.host) == (core.pid, core.host)), core)
    rows = [core, *(row for row in workers if row is not core)]
    if problems := list(_problems(plan, rows)):
        refuse("; ".join(problems), settings)
    used = {str(row.engine[MODEL_RUNNER]) for row in rows if MODEL_RUNNER in row.engine}
    if plan.model_runner and (others := used - {plan.model_runner}):
        report.error(_OTHER_RUNNER.format(plan.model_runner, ", ".join(sorted(others))))
    changes = {slot: value for slot, value in plan.changes.items() if slot_named(slot).is_enforced}
    receipt = Receipt(digest=plan.digest, host=socket.gethostname(), changes=changes, processes=tuple(rows))
    receipts.add(settings.receipt, receipt)
    if not settings.is_quiet and (changes or plan.patches):
        report.log_receipt(receipt, plan.slots)
    return receipt


def _problems(plan: ProcessPlan, rows: Iterable[Acknowledgement]) -> Iterable[str]:
    for row in rows:
        who = f"{row.process} (process {row.pid} on {row.host})"
        if row.digest != plan.digest:
            yield f"{who} carries out {f'plan {row.digest[:12]}…' if row.digest else 'no plan'} instead of {plan.digest[:12]}…"
        yield from (f"{who}: {text}" for text in contradictions(plan, row.engine))


def refuse(problem: str, settings: HookSettings) -> NoReturn:
    """Keeps an engine from starting, and puts the reason into the file of receipts.

    Raises:
        ReceiptError: Always.
    """
    receipts.add(settings.receipt, problem)
    raise ReceiptError(f"this engine cannot have a receipt: {problem}")


def _init_executor(original: Callable[..., Any], executor: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
    if plan_of(vllm_config) is None and (settings := HookSettings.read()) is not None and settings.needs_receipt:
        refuse(_NO_PLAN, settings)
    _into_force(vllm_config)
    original(executor, vllm_config, *args, **kwargs)


def _initialize_from_config(original: Callable[..., Any], executor: Any, *args: Any, **kwargs: Any) -> Any:
    if prove(executor) is not None:
        accounts.watch_executor(executor)
    return original(executor, *args, **kwargs)


def _init_worker(original: Callable[..., Any], wrapper: Any, all_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
    _into_force(all_kwargs[wrapper.rpc_rank].get("vllm_config"))
    return original(wrapper, all_kwargs, *args, **kwargs)


def _init_device(original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    if plan_of(wrapper.worker.vllm_config) is not None:
        setattr(type(wrapper), worker_calls.METHOD, worker_calls.call)
        accounts.watch_worker(wrapper)
    return original(wrapper, *args, **kwargs)


def _into_force(config: Any) -> None:
    """A forked process inherits vLLM's note that plugins are loaded, and our wrappers; the plan is in its configuration."""
    if (plan := plan_of(config)) is None:
        return
    process.carry_out(plan)
    # An engine in the process of its front end, or in a Ray actor, is no child of the front end.
    if os.environ.get(FRONT_END_VARIABLE) == str(os.getppid()) and _CORE in process.process_name():
        os.environ[FRONT_END_VARIABLE] = str(os.getpid())  # for the workers that this process starts
        end_with_parent()
