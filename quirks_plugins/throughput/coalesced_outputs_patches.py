"""The functions that ``coalesced-outputs`` puts into vLLM.

After every step the engine core sends an output of each request to the front end, also of requests whose caller waits for the
last output. The outputs of such requests are held here until the request finishes, and leave as one. They leave earlier where
the front end must know them: before the weights get a new label, and before the engine core ends requests by itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.engine.core import EngineCore, EngineCoreProc
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.request import Request

#: Key in a request's ``extra_args``: its caller reads nothing before it finishes. `worker.engine.vllm_adapter` sets it.
MARK = "model_quirks_coalesce"
#: Attribute of a scheduler that keeps its `HeldOutputs`.
_ATTRIBUTE = "_model_quirks_held"
#: Fields of an output that can be held: they are joined, the same in every output, or read from the last one.
_HOLDABLE = {
    "request_id",
    "new_token_ids",
    "new_logprobs",
    "prefill_stats",
    "finish_reason",
    "trace_headers",
    "num_nans_in_logits",
}


def wrap_update_from_output(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make `Scheduler.update_from_output` hold the outputs of marked requests until they finish."""

    @wraps(original)
    def update_from_output(self: Scheduler, scheduler_output: Any, model_runner_output: Any) -> Any:
        if self.log_stats:  # the front end computes latencies from the times at which outputs arrive
            return original(self, scheduler_output, model_runner_output)
        held = self.__dict__.get(_ATTRIBUTE)
        if held is None:
            held = self.__dict__[_ATTRIBUTE] = HeldOutputs()
        held.drop(scheduler_output.finished_req_ids)
        lists, step = model_runner_output.logprobs, None
        if lists is not None and held.begin(scheduler_output.num_scheduled_tokens, self.requests):
            # The original makes arrays of each request's own, which would be taken apart again here.
            step = _Step(lists, model_runner_output.req_id_to_index)
            model_runner_output.logprobs = None
        outputs = original(self, scheduler_output, model_runner_output)
        model_runner_output.logprobs = lists
        return held.hold(outputs, self.requests, step)

    return update_from_output


def wrap_set_weight_version(original: Callable[..., None]) -> Callable[..., None]:
    """Make `EngineCore.set_weight_version` send what is held first: a message has one label, for all tokens in it."""

    @wraps(original)
    def set_weight_version(self: EngineCore, weight_version: str) -> None:
        _send_held(self)
        original(self, weight_version)

    return set_weight_version


def wrap_send_abort_outputs(original: Callable[..., None]) -> Callable[..., None]:
    """Make `EngineCoreProc._send_abort_outputs` (pause, sleep, shutdown) send what is held first, as part of those outputs."""

    @wraps(original)
    def _send_abort_outputs(self: EngineCoreProc, aborted_reqs: list[Request]) -> None:
        _send_held(self)
        original(self, aborted_reqs)

    return _send_abort_outputs


def wrap_update_sample_logprobs(original: Callable[..., None]) -> Callable[..., None]:
    """Make `LogprobsProcessor._update_sample_logprobs`, in the front end, append many tokens at once, not one by one.

    It does so for flat logprobs of the sampled tokens alone, without text: those that the worker asks for.
    """

    @wraps(original)
    def _update_sample_logprobs(self: LogprobsProcessor, logprobs_lists: LogprobsLists) -> None:
        from vllm.logprobs import FlatLogprobs

        flat, count = self.logprobs, len(logprobs_lists.sampled_token_ranks)
        if count < 2 or self.num_logprobs != 0 or self.tokenizer is not None or not isinstance(flat, FlatLogprobs):
            original(self, logprobs_lists)
            return
        logprobs, first = logprobs_lists.logprobs[:, 0].tolist(), len(flat.logprobs)
        for logprob in logprobs:  # in this order, so that the sum is the same to the last bit
            self.cumulative_logprob += logprob
        flat.start_indices.extend(range(first, first + count))
        flat.end_indices.extend(range(first + 1, first + count + 1))
        flat.token_ids.extend(logprobs_lists.logprob_token_ids[:, 0].tolist())
        flat.logprobs.extend(logprobs)
        flat.ranks.extend(logprobs_lists.sampled_token_ranks.tolist())
        flat.decoded_tokens.extend([None] * count)

    return _update_sample_logprobs


def generated_so_far(self: EngineCore) -> list[int]:
    """Return how many tokens each unfinished request has generated; the front end has not seen those that are held."""
    return [request.num_output_tokens for request in self.scheduler.requests.values() if not request.is_finished()]


def _send_held(core: EngineCore) -> None:
    from vllm.v1.engine import EngineCoreOutputs

    held = core.scheduler.__dict__.get(_ATTRIBUTE)
    if held is None or not hasattr(core, "output_queue"):  # in its caller's process, where requests are not marked
        return
    messages = {client: EngineCoreOutputs(outputs=outputs) for client, outputs in held.release().items()}
    if hasattr(core, "_attach_weight_version"):  # since 0.32
        core._attach_weight_version(messages)
    for message in messages.items():
        core.output_queue.put_nowait(message)


class _Step:
    """The logprobs of one step of a batch whose requests are all marked.

    Args:
        lists: vLLM's arrays for the batch.
        rows: The place of each request in the batch.
    """

    def __init__(self, lists: LogprobsLists, rows: dict[str, int]) -> None:
        self._logprobs: list[float] = lists.logprobs[:, 0].tolist()
        self._ranks: list[int] = lists.sampled_token_ranks.tolist()
        self._starts = lists.cu_num_generated_tokens  # with speculative decoding a request has several tokens in a step
        self._rows = rows

    def put(self, held: _Held, request_id: str, count: int) -> None:
        """Append those of a request's tokens to what is held of it."""
        start = self._rows[request_id]
        if self._starts is not None:
            start = self._starts[start]
        elif count == 1:  # nearly always, and in every step for each request
            held.logprobs.append(self._logprobs[start])
            held.ranks.append(self._ranks[start])
            return
        held.logprobs.extend(self._logprobs[start : start + count])
        held.ranks.extend(self._ranks[start : start + count])


class HeldOutputs:
    """What the requests of one scheduler have generated and the front end has not seen yet."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def begin(self, scheduled: Iterable[str], requests: dict[str, Request]) -> bool:
        """Hold the outputs of these requests from now on; return whether all may be held. Those that are gone have none."""
        held = self._held
        return all(name in held or name not in requests or self._begin(requests[name]) for name in scheduled)

    def hold(
        self, outputs: dict[int, EngineCoreOutputs], requests: dict[str, Request], step: _Step | None = None
    ) -> dict[int, EngineCoreOutputs]:
        """Take the outputs of unfinished requests out of one step's messages; the last one gets what was held before.

        Args:
            outputs: A step's messages, by client; changed in place.
            requests: The scheduler's unfinished requests, by id.
            step: The logprobs that these outputs lack.

        Returns:
            The messages that still have content.
        """
        for client, message in list(outputs.items()):
            message.outputs = [output for output in message.outputs if not self._takes(output, requests, step)]
            if not (message.outputs or message.finished_requests or message.scheduler_stats):
                del outputs[client]
        return outputs

    def drop(self, finished: Iterable[str]) -> None:
        """Forget requests that the front end ended (a client left, a time limit): it ignores all further outputs of them."""
        for request_id in finished:
            self._held.pop(request_id, None)

    def release(self) -> dict[int, list[EngineCoreOutput]]:
        """Return everything that is held as outputs of unfinished requests, by client; later tokens are held again."""
        held, self._held = self._held, {}
        released: dict[int, list[EngineCoreOutput]] = {}
        for request_id, one in held.items():
            if one.tokens:
                released.setdefault(one.client, []).append(one.output(request_id))
        return released

    def _begin(self, request: Request) -> bool:
        """Hold a request's outputs from now on; return whether they may be held."""
        if not _is_coalesced(request):
            return False
        self._held[request.request_id] = _Held(request.client_index)
        return True

    def _takes(self, output: EngineCoreOutput, requests: dict[str, Request], step: _Step | None) -> bool:
        """Hold an output, or complete it by what was held; return whether it is held."""
        name = output.request_id
        held = self._held.get(name)
        if held is None:
            if name not in requests or not self._begin(requests[name]):
                return False
            held = self._held[name]
        if step is not None:
            step.put(held, name, len(output.new_token_ids))
        held.add(output)
        if output.finish_reason is None and _is_plain(output):
            return True
        del self._held[name]
        held.complete(output)
        return False


@dataclass(slots=True)
class _Held:
    """The held outputs of one request. Numbers in arrays, because Python's garbage collection looks through all else.

    Attributes:
        client: Index of the front end that the request came from.
        tokens: Its token ids.
        logprobs: Those of the tokens, or nothing.
        ranks: Likewise.
        prefill_stats: How much of its prompt was cached; only the first output has it.
    """

    client: int
    tokens: list[int] = field(default_factory=list)
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    ranks: array[int] = field(default_factory=lambda: array("i"))
    prefill_stats: Any = None

    def add(self, output: EngineCoreOutput) -> None:
        """Append a step's output."""
        self.tokens += output.new_token_ids
        if output.prefill_stats is not None:
            self.prefill_stats = output.prefill_stats
        if output.new_logprobs is not None:
            self.logprobs.extend(output.new_logprobs.logprobs[:, 0].tolist())
            self.ranks.extend(output.new_logprobs.sampled_token_ranks.tolist())

    def complete(self, output: EngineCoreOutput) -> None:
        """Put everything held into an output, which was added."""
        output.new_token_ids, output.new_logprobs, output.prefill_stats = self.tokens, self._lists(), self.prefill_stats

    def output(self, request_id: str) -> EngineCoreOutput:
        """Return everything held as the output of an unfinished request."""
        from vllm.v1.engine import EngineCoreOutput

        return EngineCoreOutput(request_id, self.tokens, new_logprobs=self._lists(), prefill_stats=self.prefill_stats)

    def _lists(self) -> LogprobsLists | None:
        """Return ids and logprobs ``[tokens, 1]`` and ranks ``[tokens]``: a logprob is that of the token itself."""
        import numpy as np
        from vllm.v1.outputs import LogprobsLists

        if not self.logprobs:
            return None
        ids = np.array(self.tokens, np.int32)
        logprobs, ranks = np.frombuffer(self.logprobs, np.float32), np.frombuffer(self.ranks, np.int32)
        return LogprobsLists(logprob_token_ids=ids[:, None], logprobs=logprobs[:, None], sampled_token_ranks=ranks)


def _is_coalesced(request: Request) -> bool:
    """Whether the caller of a request reads its last output only, and nothing in it forbids to join the outputs."""
    params = request.sampling_params
    if params is None or not (params.extra_args or {}).get(MARK):
        return False
    from vllm.sampling_params import RequestOutputKind

    return (
        params.output_kind == RequestOutputKind.FINAL_ONLY
        and not params.stop  # the front end searches them, and ends the request
        and not request.resumable  # streams its input
        and not params.logprobs  # 0 is the sampled token's, which is all that the worker requests
        and params.logprob_token_ids is None
        and params.prompt_logprobs is None
    )


def _is_plain(output: EngineCoreOutput) -> bool:
    """Whether an output has nothing that cannot be joined: no events, routed experts, sampling mask and others."""
    others, nothing = _others()
    try:
        return bool(others(output) == nothing)
    except ValueError:  # an array, which compares by element
        return False


@cache
def _others() -> tuple[Callable[[EngineCoreOutput], tuple[Any, ...]], tuple[None, ...]]:
    """Return what reads the fields that an output must leave open to be held, and what it reads of such an output."""
    from vllm.v1.engine import EngineCoreOutput

    names = [name for name in EngineCoreOutput.__struct_fields__ if name not in _HOLDABLE]
    return attrgetter(*names), (None,) * len(names)
