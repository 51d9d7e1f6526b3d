"""Rollouts get their outputs from the engine core at once; `tests/engine/test_coalesced_outputs.py` runs them."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from quirks_plugins.throughput.coalesced_outputs_patches import (
    MARK,
    HeldOutputs,
    wrap_update_from_output,
    wrap_update_sample_logprobs,
)
from worker.engine import vllm_adapter


def test_the_worker_knows_the_plan_by_what_the_quirk_adds(plan_for):
    assert vllm_adapter.COUNTS_HELD in [patch.target for patch in plan_for("qwen3").patches]
    assert vllm_adapter.COUNTS_HELD not in [patch.target for patch in plan_for("qwen3", disable=["coalesced-outputs"]).patches]


# ---- what is held: records of vLLM's own types, without an engine


@pytest.fixture
def step():
    """Puts one step's outputs of a batch through `HeldOutputs`, and returns what leaves."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

    def run(held, requests, *, logprobs=None, **fields):
        made = {}
        for row, (name, request) in enumerate(requests.items()):
            # All rows of a step are views of the same arrays, as those of the sampler are.
            lists = logprobs.slice_request(row, 1) if logprobs is not None else None
            output = EngineCoreOutput(name, [row], new_logprobs=lists, **fields)
            made.setdefault(request.client_index, []).append(output)
        return held.hold({client: EngineCoreOutputs(outputs=outputs) for client, outputs in made.items()}, requests)

    return run


@pytest.fixture
def lists():
    """One step's logprobs: ids, logprobs and ranks of `rows` requests."""
    from vllm.v1.outputs import LogprobsLists

    def make(rows, columns=1, value=0.0):
        shape = (rows, columns)
        return LogprobsLists(np.zeros(shape, np.int32), np.full(shape, value, np.float32), np.ones(rows, np.int32))

    return make


@pytest.fixture
def request_of():
    """A request as the scheduler has it, with sampling parameters changed."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.request import Request

    def make(name="a", client_index=0, **values):
        usual = {"extra_args": {MARK: True}, "output_kind": RequestOutputKind.FINAL_ONLY, "logprobs": 0, "max_tokens": 8}
        return Request(name, [1, 2], SamplingParams(**{**usual, **values}), None, client_index=client_index)

    return make


@pytest.mark.parametrize(
    "values",
    [
        {"extra_args": None},
        {"extra_args": {"other": 1}},
        {"output_kind": 1},
        {"stop": ["word"]},
        {"logprobs": -1},
        {"logprobs": 2},
        {"prompt_logprobs": 0},
        {"logprob_token_ids": [1, 2], "logprobs": None},
    ],
    ids=str,
)
def test_what_cannot_be_joined_is_not_held(step, request_of, values):
    from vllm.sampling_params import RequestOutputKind

    if "output_kind" in values:
        values = {"output_kind": RequestOutputKind(values["output_kind"])}
    left = step(HeldOutputs(), {"a": request_of(**values)})

    assert [output.new_token_ids for output in left[0].outputs] == [[0]]


def test_an_output_with_something_else_brings_what_was_held(step, request_of):
    held, requests = HeldOutputs(), {"a": request_of()}

    assert step(held, requests) == {}
    left = step(held, requests, routed_experts=np.zeros((1, 2, 2)))

    (output,) = left[0].outputs
    assert (output.new_token_ids, output.finish_reason) == ([0, 0], None)


def test_each_client_gets_its_own(step, request_of):
    held = HeldOutputs()
    step(held, {"a": request_of(), "b": request_of("b", client_index=2)})

    released = held.release()

    assert {client: [output.request_id for output in outputs] for client, outputs in released.items()} == {
        0: ["a"],
        2: ["b"],
    }
    assert held.release() == {}


def test_a_request_that_the_front_end_ended_is_forgotten(step, request_of):
    held = HeldOutputs()
    step(held, {"a": request_of(), "b": request_of("b")})

    held.drop({"a"})

    assert [output.request_id for output in held.release()[0]] == ["b"]


def test_long_requests_keep_no_arrays_of_their_steps_alive(step, request_of, lists):
    held, arrays = HeldOutputs(), []
    for number in range(300):
        made = lists(1, columns=4, value=float(number))
        arrays.append(weakref.ref(made.logprobs))
        step(held, {"a": request_of()}, logprobs=made)
        del made

    assert not any(array() is not None for array in arrays)
    (output,) = held.release()[0]
    assert output.new_logprobs.logprobs.tolist() == [[float(number)] for number in range(300)]
    assert output.new_logprobs.logprob_token_ids.tolist() == [[0]] * 300
    assert output.new_logprobs.sampled_token_ranks.tolist() == [1] * 300


@pytest.fixture
def scheduled():
    """Puts steps through the wrapper around a scheduler's method that does to logprobs what vLLM's does."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

    sliced = []

    def original(scheduler, scheduler_output, found):
        made = []
        for name, row in found.req_id_to_index.items():
            tokens = found.sampled_token_ids[row]
            lists = None if found.logprobs is None else found.logprobs.slice_request(row, len(tokens))
            sliced.append(lists is not None)
            finish = FinishReason.LENGTH if name in scheduler_output.ends else None
            made.append(EngineCoreOutput(name, tokens, new_logprobs=lists, finish_reason=finish))
        for name in scheduler_output.ends:
            del scheduler.requests[name]
        return {0: EngineCoreOutputs(outputs=made)}

    update = wrap_update_from_output(original)

    def run(scheduler, tokens, logprobs, *, ends=()):
        rows = {name: row for row, name in enumerate(tokens)}
        found = SimpleNamespace(req_id_to_index=rows, sampled_token_ids=list(tokens.values()), logprobs=logprobs)
        scheduler_output = SimpleNamespace(finished_req_ids=set(), num_scheduled_tokens=rows, ends=ends)
        left = update(scheduler, scheduler_output, found)
        assert found.logprobs is logprobs
        return {output.request_id: output for message in left.values() for output in message.outputs}

    return SimpleNamespace(run=run, sliced=sliced)


def _scheduler(*requests):
    return SimpleNamespace(log_stats=False, requests={request.request_id: request for request in requests})


def _logprobs(*values, starts=None, columns=1):
    from vllm.v1.outputs import LogprobsLists

    made = np.zeros((len(values), columns), np.float32)
    made[:, 0] = values
    return LogprobsLists(np.zeros_like(made, np.int32), made, np.arange(1, len(values) + 1, dtype=np.int64), starts)


def test_each_marked_request_of_a_batch_gets_its_own_logprobs(scheduled, request_of):
    scheduler = _scheduler(request_of("a"), request_of("b"))

    assert scheduled.run(scheduler, {"a": [5], "b": [6]}, _logprobs(-0.5, -1.5)) == {}
    assert scheduled.run(scheduler, {"b": [7], "a": [8]}, _logprobs(-2.5, -3.5), ends=["b"]).keys() == {"b"}
    (left,) = scheduled.run(scheduler, {"a": [9]}, _logprobs(-4.5), ends=["a"]).values()

    assert not any(scheduled.sliced)
    assert left.new_token_ids == [5, 8, 9]
    assert [column.tolist() for column in left.new_logprobs[:3]] == [[[5], [8], [9]], [[-0.5], [-3.5], [-4.5]], [1, 2, 1]]


def test_several_tokens_of_a_step_have_their_own_logprobs(scheduled, request_of):
    """Speculative decoding: the tokens of all requests lie one after the other."""
    scheduler = _scheduler(request_of("a"), request_of("b"))

    scheduled.run(scheduler, {"a": [5, 6], "b": [7, 8, 9]}, _logprobs(-0.5, -1.5, -2.5, -3.5, -4.5, starts=[0, 2, 5]))
    left = scheduled.run(scheduler, {"a": [1], "b": [2]}, _logprobs(-5.5, -6.5), ends=["a", "b"])

    assert {name: output.new_logprobs.logprobs[:, 0].tolist() for name, output in left.items()} == {
        "a": [-0.5, -1.5, -5.5],
        "b": [-2.5, -3.5, -4.5, -6.5],
    }


def test_beside_an_unmarked_request_logprobs_are_vllms_own(scheduled, request_of):
    scheduler = _scheduler(request_of("a"), request_of("b", extra_args=None, logprobs=3))

    first = scheduled.run(scheduler, {"a": [5], "b": [6]}, _logprobs(-0.5, -1.5, columns=4))
    second = scheduled.run(scheduler, {"a": [7], "b": [8]}, _logprobs(-2.5, -3.5, columns=4), ends=["a"])

    assert first.keys() == {"b"}
    assert second["a"].new_logprobs.logprobs.tolist() == [[-0.5], [-2.5]]
    assert [made["b"].new_logprobs.logprobs.shape for made in (first, second)] == [(1, 4)] * 2
    assert all(scheduled.sliced)


@pytest.mark.parametrize(("num_logprobs", "is_flat"), [(0, True), (2, False)], ids=["flat", "usual top"])
def test_logprobs_of_many_tokens_become_what_vllm_makes_of_them(num_logprobs, is_flat):
    from vllm.logprobs import create_sample_logprobs
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.outputs import LogprobsLists

    made = np.random.default_rng(0)
    steps = [
        LogprobsLists(
            made.integers(0, 500, (rows, num_logprobs + 1)),
            made.normal(size=(rows, num_logprobs + 1)).astype(np.float32),
            made.integers(1, 9, rows),
        )
        for rows in (1, 70, 5)
    ]
    usual = LogprobsProcessor._update_sample_logprobs
    results = []
    for update in (usual, wrap_update_sample_logprobs(usual)):
        processor = LogprobsProcessor(None, create_sample_logprobs(is_flat), None, 0.0, num_logprobs, None)
        for step in steps:
            update(processor, step)
        results.append(processor)

    expected, got = results
    assert (got.logprobs, got.cumulative_logprob) == (expected.logprobs, expected.cumulative_logprob)
    assert len(got.logprobs) == 76


def test_engines_that_keep_statistics_send_every_output(request_of):
    sent = object()
    scheduler = SimpleNamespace(log_stats=True, requests={"a": request_of()})
    update = wrap_update_from_output(lambda *_: sent)

    assert update(scheduler, SimpleNamespace(finished_req_ids=set()), None) is sent
