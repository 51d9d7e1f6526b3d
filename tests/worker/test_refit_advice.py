"""What the message of a failed refit advises: only what can help."""

from __future__ import annotations

import pytest

from worker.errors import RefitError, RefitRejectedError, RefitUnsupportedError, TransferError
from worker.refit.advice import kind_of, main_cause, way_back

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
