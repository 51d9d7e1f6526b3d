"""What the message of a failed refit advises: only what can help."""

from __future__ import annotations

import pytest

from worker.engine.readiness import FROM_DUMMY
from worker.errors import RefitError, RefitRejectedError, RefitUnsupportedError, TransferError
from worker.refit.advice import kind_of, main_cause, unchanged, way_back

AGAIN = "refit once more, completely"
ALIKE = "further refits of this engine fail in the same way"


@pytest.mark.parametrize("dummy", [True, False])
def test_a_model_that_vllm_cannot_refit_is_never_to_be_refitted_once_more(dummy):
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
    assert [kind_of(error) for error in (lost, rejected, unsupported)] == [
        RefitError,
        RefitRejectedError,
        RefitUnsupportedError,
    ]


def test_an_engine_with_dummy_weights_is_not_said_to_generate_with_them():
    said = unchanged(RefitRejectedError, version="default", problem=FROM_DUMMY, dummy=True)

    assert said == f"the refit has changed nothing, so the engine still cannot generate: {FROM_DUMMY}"
    assert unchanged(RefitUnsupportedError, version="default", problem=FROM_DUMMY, dummy=True).endswith(
        f"{ALIKE}; set engine.load_format=auto, which may avoid it, or report it to vLLM"
    )
