"""The ledger of a worker's engine: healthy updates have no verdict, and what is wrong is named within two updates."""

from __future__ import annotations

import pytest
import pytest_asyncio
import torch

from quirks_core.ledger.account import Entry
from worker.refit import Arrivals, digest
from worker.refit.engine import ledger

#: A tied head, and one of its own with experts.
KINDS = ("llama_tied", "qwen3_moe")


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=KINDS)
async def kind(request, checkpoint, running):
    """A worker of each kind that starts from its checkpoint."""
    model = checkpoint(request.param)
    async with running(model, {"engine": {"load_format": "auto"}}) as started:
        yield started, model


@pytest.fixture
def trainer(kind, lab):
    """The worker and its policy as the trainer has it."""
    worker, model = kind
    return worker, lab.trainer(model)


@torch.no_grad()
def step(policy):
    """Trains for one step: every parameter changes."""
    for parameter in policy.parameters():
        parameter.add_(torch.randn_like(parameter) * 1e-3)


async def test_only_a_run_that_stops_changing_has_a_verdict(trainer, lab):
    worker, policy = trainer
    await worker.refit_async(policy, version="start")
    assert worker.last_refit.verdicts == ()
    for number in range(2, 5):
        step(policy)
        await worker.refit_async(policy, version=f"step-{number}")
        await lab.greedy(worker)
        await worker.refit_async(policy, version=f"step-{number}")  # for an evaluation

        (entry,) = worker.last_refit.entries
        assert (worker.last_refit.verdicts, entry.version, entry.way, entry.changed) == ((), f"step-{number}", "transfer", ())
        assert entry.tensors == worker.last_refit.copied + worker.last_refit.reloaded
        assert entry.bytes == sum(parameter.nbytes for parameter in policy.parameters())
    (account,) = await worker.engine.call(ledger.account)
    shares = [line["changed"] / line["held"] for line in account["lines"][-6:]]
    assert shares == [1, 0, 1, 0, 1, 0]

    await worker.refit_async(policy)
    (note,) = worker.last_refit.verdicts
    assert (note.kind, note.is_grave) == ("unchanged", False)
    assert f"changed 0 of {len(entry.digests)} tensors; earlier updates changed {len(entry.digests)} of them" in note.text
    assert note.text not in worker.warnings
    step(policy)
    await worker.refit_async(policy)
    assert worker.last_refit.verdicts == ()


async def test_weights_that_are_too_old_for_their_trainer_are_named(trainer):
    worker, policy = trainer
    await worker.report_updates_async(10)
    step(policy)
    await worker.refit_async(policy)

    behind = [await worker.report_updates_async(updates) for updates in (14, 15)]
    assert [[verdict.kind for verdict in found] for found in behind] == [[], ["behind"]]


async def now(worker):
    """What the engine runs on."""
    return [Entry.model_validate(one) for one in await worker.engine.call(ledger.look)]


async def test_digested_tensors_arrive_only_by_an_update(trainer):
    worker, policy = trainer
    arrivals = Arrivals()
    for _ in range(3):
        step(policy)
        await worker.refit_async(policy)

        found = arrivals.compare(worker.last_refit.entries, digest(policy))

        assert (found.status, found.share, found.verdict, found.changed_share) == ("arrived", 1, "", 1), str(found)
    step(policy)

    lost = arrivals.compare(await now(worker), digest(policy))

    assert (lost.status, lost.share, lost.incomparable) == ("missing", 0, ())
    assert "no update came since the comparison before" in lost.verdict
