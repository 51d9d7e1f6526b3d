"""The engine's side of a contract, read in its processes; called by `quirks_core.hook.worker_calls`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quirks_core.apply.handed_down import CARRIED
from quirks_core.apply.read_back import read_configuration
from quirks_core.hook.settings import HookSettings
from quirks_core.plan.contract import SLOTS, Contract, versions_here
from quirks_core.plan.records import ProcessPlan


def stated(worker: Any) -> dict[str, Any]:
    """Returns the fields of the engine's `Contract`: what it has, and what its user declared in MODEL_QUIRKS_SET."""
    config = worker.vllm_config
    plan = ProcessPlan.model_validate(config.additional_config[CARRIED])
    settings = HookSettings.read()
    declared = {} if settings is None else settings.given
    held = read_configuration(config, SLOTS.values()) | {"engine.enable_lora": config.lora_config is not None}
    return asdict(Contract.of_values(plan.digest, {**declared, **plan.changes, **held}, versions_here()))
