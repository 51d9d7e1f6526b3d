"""What engines' workers do in a refit, and what they state; these functions run there (`worker.engine.engine.Engine.call`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from quirks_core.apply.handed_down import CARRIED
from quirks_core.apply.read_back import read_configuration
from quirks_core.hook.settings import HookSettings
from quirks_core.plan.contract import SLOTS, Contract, versions_here
from quirks_core.plan.records import ProcessPlan
from worker.errors import RefitError, RefitRejectedError
from worker.refit.advice import with_counts
from worker.refit.engine.finite import NotFinite
from worker.refit.engine.parameters import Parameters


def rank(worker: Any) -> int:
    """Returns this worker's rank among all of its engine."""
    return int(worker.weight_transfer_engine.rank)


def join(worker: Any, init_info: dict[str, Any]) -> None:
    """Joins a trainer's group, given the fields of a `worker.refit.engine.transfer_engine.RefitInitInfo`.

    Raises:
        TransferError: Not all ranks came.
        RefitRejectedError: The engine's backend takes other fields.
    """
    _check_form(worker.weight_transfer_engine.parse_init_info, init_info)
    worker.init_weight_transfer_engine(init_info)


def take(worker: Any, update_info: dict[str, Any]) -> dict[str, Any]:
    """Takes new weights through vLLM's native weight transfer; returns which way they went (`worker.refit.refitting`).

    Args:
        worker: The worker.
        update_info: The fields of a `worker.refit.engine.transfer_engine.RefitUpdateInfo`; its docstring has the errors.
    """
    worker.start_weight_update()
    worker.update_weights(update_info)
    worker.finish_weight_update()
    return dict(worker.weight_transfer_engine.ways)


def begin(worker: Any, *, draft: bool) -> None:
    """Begins an update whose parts come one by one, of the model or of its draft model."""
    worker.weight_transfer_engine.touched = False
    worker.start_draft_weight_update() if draft else worker.start_weight_update()


def part(worker: Any, update_info: Any) -> None:
    """Takes a part of the update, as the engine's backend takes it.

    Raises:
        RefitRejectedError: It takes other fields.
    """
    engine = worker.weight_transfer_engine
    for info in update_info if isinstance(update_info, list) else [update_info]:
        _check_form(engine.parse_update_info, info)
    if not hasattr(engine, "ways"):
        engine.touched = True  # vLLM's backends load while they receive
    worker.update_weights(update_info)


def end(worker: Any, *, draft: bool, finite: bool) -> dict[str, Any]:
    """Ends the update; returns what `take` does. For vLLM's backends it only knows which values are not finite.

    Raises:
        RefitError: Weights that one of vLLM's backends loaded are not `finite`.
    """
    engine = worker.weight_transfer_engine
    worker.finish_weight_update()
    if draft or hasattr(engine, "ways"):
        return dict(getattr(engine, "ways", {}))
    not_finite = NotFinite()
    not_finite.look_at_model(Parameters(worker.model_runner.get_model()))
    if finite and not_finite:
        raise RefitError(f"the new weights are not finite, {with_counts(not_finite)}; refit.finite: false takes them")
    return {"copied": 0, "reloaded": 0, "layers": [], "unloaded": [], "not_finite": dict(not_finite)}


def abandon(worker: Any) -> None:
    """Ends an update that is given up, so that another one can begin."""
    if getattr(worker, "_weight_update_active", False):
        with suppress(Exception):
            worker.finish_weight_update()
        worker._weight_update_active = False


def touched(worker: Any) -> bool:
    """Returns whether the last refit changed the model; if it failed as well, old and new weights stand side by side."""
    return bool(worker.weight_transfer_engine.touched)


def forget(worker: Any, plan: bool) -> None:
    """Closes the trainer's memory; forgets on demand what can be copied."""
    if (close := getattr(worker.weight_transfer_engine, "forget", None)) is not None:  # vLLM's backends keep nothing
        close(plan=plan)


def verify(worker: Any, update_info: dict[str, Any]) -> dict[str, str]:
    """Compares the model with one that is loaded again from the same source; returns what differs, by tensor."""
    engine = worker.weight_transfer_engine
    return dict(engine.verify(engine.parse_update_info(update_info)))


def stated(worker: Any) -> dict[str, Any]:
    """Returns the fields of the engine's `Contract`: what it has, and what its user declared in MODEL_QUIRKS_SET."""
    config = worker.vllm_config
    plan = ProcessPlan.model_validate(config.additional_config[CARRIED])
    settings = HookSettings.read()
    declared = {} if settings is None else settings.given
    held = read_configuration(config, SLOTS.values()) | {"engine.enable_lora": config.lora_config is not None}
    return asdict(Contract.of_values(plan.digest, {**declared, **plan.changes, **held}, versions_here()))


def _check_form(parse: Callable[[Any], Any], info: Any) -> None:
    try:
        parse(info)
    except ValueError as error:
        raise RefitRejectedError(
            f"{error}; releases of vLLM have different fields, and trainer and engine need the same"
        ) from None
