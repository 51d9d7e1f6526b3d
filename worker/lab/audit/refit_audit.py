"""Audits refits: what they leave wrong in an engine that started from dummy weights, and which quirks cover it.

An engine without the quirks of weight transfer is refitted from the checkpoint, as a trainer would do it, and compared with
the same checkpoint loaded from disk, in the engine's own processes: every parameter and buffer by value, every linear layer and
embedding by its output. Every difference is a hazard. The same is repeated with the plan in force, so that a hazard is reported
as covered only if it did not occur.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from quirks_core.configuration.config import GenerationConfig
from quirks_core.declaration.flags import Kind, ModelFlag
from quirks_core.facts.model import require_weights
from quirks_core.plan.records import Plan
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions
from worker.async_worker import VllmAsyncGenerationWorker
from worker.errors import RefitError, RefitRejectedError, TransferError, WorkerCallError
from worker.lab.attribution.coverage import setters
from worker.lab.audit import tensor_audit
from worker.lab.audit.records import PLANNED_REFITS, REFITS, Audit, AuditError, Hazard, Refit
from worker.lab.parity.records import Notify
from worker.lab.parity.session import running
from worker.lab.parity.trainer import TrainerLoadError, TrainerOptions, load_model
from worker.refit.weights.scope import RefitScope

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Slots that decide where an engine's tensors come from, with their values in a run without quirks.
OPEN = {"engine.load_format": "dummy", "refit.scope": "parameters"}
#: Flags of the quirks that concern weights.
FLAGS = (ModelFlag.LOAD_FORMAT, ModelFlag.WEIGHT_SYNC)


class _Finding(NamedTuple):
    """What one refit showed: the record, and by tensor its fields and processes."""

    refit: Refit
    rows: Mapping[str, dict[str, Any]]


async def audit(
    config: GenerationConfig,
    planning: PlanOptions | None = None,
    *,
    notify: Notify = lambda _: None,
) -> Audit:
    """Audits the refits of one model.

    Starts an engine from dummy weights without the quirks that could concern refits, and, if that one shows hazards and the
    plan does something about weights, one with the plan in force. Each comparison loads the checkpoint beside the engine's
    model, so there must be room for a second one on the engine's device (`engine.gpu_memory_utilization`); the transformers
    model is in this process, in float32. Quirks that the options force are active only on the engine with the plan in force.

    Raises:
        AuditError: transformers cannot load the model, the engine has no room for a second one, or its workers do not answer.
        UsageError, RefusedError, EngineStartError, EngineDiedError, TransferError: As for `worker.VllmAsyncGenerationWorker`.
    """
    start = time.monotonic()
    config = config.model_copy(update={"purpose": "rollout"})
    require_weights(config.model.path)
    planning = planning or PlanOptions.gather(config)
    planned = VllmAsyncGenerationWorker(config, options=planning)  # before anything runs, so that a refusal comes first
    plan = planned.plan
    off = planning.switches.under(SwitchNames([*FLAGS, *candidates(plan)]), "the audit")
    notify("loading the model with transformers")
    trainer = load_trainer(config)
    notify("starting an engine from dummy weights, without quirks of weight transfer")
    # Without the user's own settings against hazards, so that a refit shows all of them.
    bare = VllmAsyncGenerationWorker(config.overridden(OPEN), options=replace(planning, switches=off))
    findings = await _refits(bare, trainer, REFITS, notify)
    if any(item.rows or item.refit.refused for item in findings) and changes_weights(plan):
        notify("starting an engine with the plan in force")
        scope = RefitScope(plan.value("refit.scope"))
        findings += await _refits(planned, trainer, [(label, scope) for label in PLANNED_REFITS], notify)
    context = plan.context
    return Audit(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        model=context.model.name,
        model_type=context.model.model_type or "unknown",
        platform=context.platform or "unknown",
        versions={name: version for name, version in context.packages.items() if version},
        plan=plan.digest,
        quirks=candidates(plan),
        refits=tuple(item.refit for item in findings),
        hazards=tuple(_hazards(findings, plan)),
        seconds=time.monotonic() - start,
    )


def load_trainer(config: GenerationConfig) -> PreTrainedModel:
    """Loads the checkpoint with transformers, as the class that it names, in float32 and on the CPU.

    In float32, which represents every dtype of a checkpoint exactly, so no difference comes from rounding on our side.

    Raises:
        AuditError: transformers cannot load it; the message has its reason.
    """
    try:
        return load_model(config.model.path, config.model.revision, TrainerOptions(), "float32", named=True)
    except TrainerLoadError as error:
        raise AuditError(
            f"{error}; an audit refits the engine from a transformers model of the checkpoint, so it needs a model type and a "
            "format of weights that transformers knows"
        ) from error


async def _refits(
    worker: VllmAsyncGenerationWorker,
    trainer: PreTrainedModel,
    refits: Iterable[tuple[str, RefitScope]],
    notify: Notify,
) -> list[_Finding]:
    """Starts an engine and refits it."""
    found: list[_Finding] = []
    async with running(worker):
        for label, scope in refits:
            notify(f"refit: {label}")
            found.append(await _refit(worker, trainer, label, scope))
    return found


async def _refit(worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel, label: str, scope: RefitScope) -> _Finding:
    """Refits and compares, also after a refit that the worker refuses half-way."""
    await _step(worker, "poison")
    refused = ""
    try:
        await worker.refit_async(trainer, scope)
    except (RefitRejectedError, TransferError):
        raise
    except RefitError as error:
        refused = str(error)
    rows: dict[str, dict[str, Any]] = {}
    for place, found in enumerate(await _step(worker, "compare")):
        for row in found:
            first = rows.setdefault(row["name"], {**row, "workers": []})
            first["workers"].append(place)
    return _Finding(Refit(label=label, scope=scope.value, refused=refused, differs=tuple(rows)), rows)


async def _step(worker: VllmAsyncGenerationWorker, step: str) -> list[list[dict[str, Any]]]:
    """Has every engine process do one step of `worker.lab.audit.tensor_audit.TensorAudit`."""
    try:
        return await worker.engine.call(tensor_audit.step, step)
    except (RefitError, WorkerCallError) as error:
        raise AuditError(str(error)) from error


def _hazards(findings: Sequence[_Finding], plan: Plan) -> Iterator[Hazard]:
    bare = [item for item in findings if item.refit.label not in PLANNED_REFITS]
    planned = [item for item in findings if item.refit.label in PLANNED_REFITS]
    for name in dict.fromkeys(name for item in bare for name in item.rows):
        showing = [item for item in bare if name in item.rows]
        hazard = Hazard(
            **showing[0].rows[name],
            after=tuple(item.refit.label for item in showing),
            planned=tuple(item.refit.label for item in planned if name in item.rows) if planned else None,
        )
        yield hazard.model_copy(update={"covered_by": covering(hazard, plan)})


# ---- quirks


def candidates(plan: Plan) -> tuple[str, ...]:
    """Returns the active quirks that could affect the weights after a refit, in alphabetical order.

    These are the workarounds and rules with a flag of `FLAGS`, the quirks that set a slot of `OPEN`, and those that patch
    something under a third party's flag, whose meaning is unknown. Patches under other built-in flags are not included: the
    engine may need them to start.
    """
    patching = {patch.quirk.id for patch in plan.patches}
    setting = {name for slot in OPEN for name in setters(slot, plan)}
    built_in = set(ModelFlag)
    found = {
        verdict.id
        for verdict in plan.active
        if (verdict.flag in FLAGS and verdict.kind is not Kind.FEATURE)
        or verdict.id in setting
        or (verdict.id in patching and verdict.flag not in built_in)
    }
    return tuple(sorted(found))


def changes_weights(plan: Plan) -> bool:
    """Whether a run under the plan can end with other weights than one without the quirks of weight transfer."""
    moved = any(plan.value(slot) != value for slot, value in OPEN.items())
    return moved or bool({patch.quirk.id for patch in plan.patches} & set(candidates(plan)))


def covering(hazard: Hazard, plan: Plan) -> tuple[str, ...]:
    """Names what covers a hazard that does not occur with the plan in force.

    A hazard that a refit of the state dict restores is credited to the quirks that send the buffers, else to those that load
    the checkpoint, else to those that patch the engine; any other hazard first to those that patch.

    Returns:
        Ids of quirks; where none sets it, the user's own ``slot=value``; empty if the hazard remains.
    """
    if not hazard.is_covered:
        return ()
    by_patch = tuple(sorted(set(candidates(plan)) & {patch.quirk.id for patch in plan.patches}))
    slots = ["refit.scope"] if hazard.state_dict_restores else []  # that can explain the results; the cheaper one first
    slots += [] if hazard.is_destroyed else ["engine.load_format"]
    slot = next((slot for slot in slots if plan.value(slot) != OPEN[slot]), None)
    by_slot = () if slot is None else setters(slot, plan) or (f"{slot}={plan.value(slot)}",)
    return by_slot or by_patch if hazard.state_dict_restores else by_patch or by_slot
