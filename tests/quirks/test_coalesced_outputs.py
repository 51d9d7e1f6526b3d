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


def test_each_client_gets_its_own_unless_it_ended_the_request(step, request_of):
    held = HeldOutputs()
    step(held, {"a": request_of(), "b": request_of("b", client_index=2), "c": request_of("c")})

    held.drop({"c"})
    released = held.release()

    assert {client: [output.request_id for output in outputs] for client, outputs in released.items()} == {0: ["a"], 2: ["b"]}
    assert held.release() == {}


def test_long_requests_keep_no_arrays_of_their_steps_alive(step, request_of):
    from vllm.v1.outputs import LogprobsLists

    held, arrays = HeldOutputs(), []
    for number in range(300):
        made = LogprobsLists(np.zeros((1, 4), np.int32), np.full((1, 4), number, np.float32), np.ones(1, np.int32))
        arrays.append(weakref.ref(made.logprobs))
        step(held, {"a": request_of()}, logprobs=made)
        del made

    assert not any(array() is not None for array in arrays)
    (output,) = held.release()[0]
    assert output.new_logprobs.logprobs.tolist() == [[float(number)] for number in range(300)]
    assert output.new_logprobs.logprob_token_ids.tolist() == [[0]] * 300
    assert output.new_logprobs.sampled_token_ranks.tolist() == [1] * 300


def test_engines_that_keep_statistics_send_every_output(request_of):
    sent = object()
    scheduler = SimpleNamespace(log_stats=True, requests={"a": request_of()})
    update = wrap_update_from_output(lambda *_: sent)

    assert update(scheduler, SimpleNamespace(finished_req_ids=set()), None) is sent
