"""What the message of a failed refit advises: only what can help; and a pause whose caller has gone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from worker.engine.serial_lock import SerialLock
from worker.errors import RefitError, RefitRejectedError, RefitUnsupportedError, TransferError
from worker.refit.advice import kind_of, main_cause, way_back
from worker.refit.refitting import Refitting

AGAIN = "refit once more, completely"
ALIKE = "further refits of this engine fail in the same way"


@pytest.mark.parametrize("dummy", [True, False])
def test_a_model_that_vllm_cannot_refit_is_not_refitted_again(dummy):
    advice = way_back(RefitUnsupportedError, dummy=dummy)

    assert ALIKE in advice
    assert AGAIN not in advice
    assert ("engine.load_format=auto" in advice) is dummy
    assert way_back(RefitError, dummy=dummy) == f"{AGAIN}, or call restart_async"


def test_the_error_that_explains_the_others_is_raised():
    lost, rejected, unsupported = TransferError("lost"), RefitRejectedError("other names"), RefitUnsupportedError("no loader")

    assert main_cause([lost, unsupported, rejected]) is rejected
    assert main_cause([lost, unsupported]) is unsupported
    assert main_cause([lost, ValueError()]) is lost
    kinds = [kind_of(error) for error in (lost, rejected, unsupported)]
    assert kinds == [RefitError, RefitRejectedError, RefitUnsupportedError]


async def test_a_pause_whose_caller_is_cancelled_is_carried_out():
    refitting, made = Refitting.__new__(Refitting), []

    @asynccontextmanager
    async def watched():
        yield

    async def pause(_):
        await asyncio.sleep(0.01)
        made.append("paused")

    refitting.lock, refitting._engine = SerialLock(), SimpleNamespace(watched=watched)
    calling = asyncio.create_task(refitting.between(pause))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling

    assert made == ["paused"]
