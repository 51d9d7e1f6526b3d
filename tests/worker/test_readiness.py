"""An engine generates only with the weights of one policy, and awake."""

from __future__ import annotations

import pytest

from quirks_core.configuration.config import GenerationConfig
from quirks_core.plugins.planning import make_plan
from worker.engine.readiness import FIRST_VERSION, KV_CACHE, WEIGHTS, Held, Readiness, start_problem
from worker.errors import NotReadyError, RefitError


@pytest.mark.parametrize(
    ("values", "may"),
    [
        ({}, False),
        ({"engine": {"generate_from_dummy": True}}, True),
        ({"engine": {"load_format": "auto"}}, True),
        ({"purpose": "eval"}, True),
    ],
    ids=str,
)
def test_dummy_weights_generate_after_a_refit_only(model, values, may):
    readiness = Readiness(start_problem(make_plan(GenerationConfig.parse({"model": str(model()), **values}))))

    if not may:
        with pytest.raises(
            NotReadyError, match=r"dummy weights .* refit before generating, or set engine\.generate_from_dummy"
        ):
            readiness.check()
        readiness.check_refit()
        readiness.refitted("1")
    readiness.check()


def test_refits_without_a_label_are_counted():
    readiness = Readiness()
    readiness.check()
    labels = [readiness.version]
    for given in (None, "step-7", None):
        labels.append(given or readiness.next_version())
        readiness.refitted(labels[-1])

    assert labels == [FIRST_VERSION, "1", "step-7", "3"]
    assert readiness.version == "3"


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_engine_neither_generates_nor_takes_weights(level):
    readiness = Readiness()
    readiness.slept(level)

    with pytest.raises(NotReadyError):
        readiness.check()
    with pytest.raises(RefitError, match=r"wake_up_async\(tags=\['weights'\]\) before a refit"):
        readiness.check_refit()
    readiness.woke([WEIGHTS])
    readiness.check_refit()
    with pytest.raises(NotReadyError, match=r"the engine sleeps \(kv_cache\); call wake_up_async" if level == 1 else "level 2"):
        readiness.check()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("tags", [[None, None], [[WEIGHTS], [KV_CACHE]], [[KV_CACHE], None], [[WEIGHTS, KV_CACHE], None]])
def test_a_light_sleep_takes_a_whole_wake_up_a_deep_one_a_refit(level, tags):
    readiness = Readiness()
    readiness.slept(level)
    assert readiness.held is (Held.BROKEN if level == 2 else Held.WHOLE)
    readiness.woke(tags[0])
    if level == 2:
        with pytest.raises(NotReadyError, match="level 2, which keeps no weights; refit before generating"):
            readiness.check()
        readiness.refitted("2")
    readiness.woke(tags[1])

    readiness.check()
