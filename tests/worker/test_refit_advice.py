"""What the message of a failed refit advises: only what can help."""

from __future__ import annotations

import pytest

from worker.engine.readiness import FROM_DUMMY, Readiness
from worker.errors import RefitError, RefitRejectedError, RefitUnsupportedError, TransferError
from worker.group.refits import may_have_changed, problem_after
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


def test_a_group_advises_as_its_engines_do():
    unsupported, lost = RefitUnsupportedError("no loader"), TransferError("the socket was closed")

    for errors, touched in (
        ({0: unsupported, 1: unsupported}, [True, True]),
        ({0: lost, 1: unsupported}, [True, False]),
        ({1: unsupported}, [True, False]),
    ):
        problem = problem_after(errors, touched, dummy=True)
        assert ALIKE in problem
        assert AGAIN not in problem
    assert problem_after({1: lost}, [True, True], dummy=True) == (
        "the engines may hold weights of different versions: a refit failed on rank 1, half-way on rank 1; "
        "refit once more, completely, or call restart"
    )
    assert "failed on rank 0; refit once more" in problem_after({0: lost}, [False, True], dummy=False)
    assert problem_after({0: unsupported, 1: unsupported}, [False, False], dummy=True) is None


@pytest.mark.parametrize(
    ("happens", "changed"),
    [
        (lambda _: None, False),
        (lambda engine: engine.slept(1), False),  # its weights sleep, and stay as they were
        (lambda engine: engine.refitted("7"), True),
        (lambda engine: engine.broken("half of it is new"), True),
    ],
    ids=["nothing", "sleep", "refitted", "half-way"],
)
@pytest.mark.parametrize("problem", [None, FROM_DUMMY])
def test_a_failed_refit_changed_an_engine_that_has_its_label_or_is_broken(happens, changed, problem):
    engine = Readiness(problem)
    happens(engine)

    state = {"alive": True, "problem": engine.problem, "weights": engine.held.value, "version": engine.version}

    assert may_have_changed(state, "7") is changed
    assert may_have_changed({"alive": False, "problem": "its actor does not answer"}, "7")


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
