"""After a call to all tensor-parallel ranks that fails, vLLM takes the other ranks' old replies for those to the next calls.

What happens: with several processes and the executor ``mp``, an adapter that cannot be loaded, a weight update that is refused,
or any other call that fails ends as soon as the first failing rank has replied. What the ranks behind it reply is left in their
queues, and replies do not name their call. The next call fails with the error of the last one, or returns what another call
returned; an update that failed on rank 1 can count as a success (vllm-project/vllm#49972). Generation reads the first rank
alone and goes on.

When it can go: when vLLM reads all replies or marks them; vllm-project/vllm#57846 is open. From 0.33.0 on vLLM reads them with
``enable_fault_tolerance``.
"""

import functools
from collections.abc import Callable
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, no, report, unknown, yes
from quirks_plugins.conditions import PP, TP
from quirks_plugins.kit import Lab, Outcome

QUIRK = Quirk(
    id="unread-rank-replies",
    title="After a call that fails, vLLM takes other ranks' old replies for those to the next calls",
    match=TP.above(1) | PP.above(1),
    affected=Affected("vllm", introduced="0.18.0"),
    adjustments=Patch(
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor.collective_rpc",
        wrapper="quirks_plugins.runtime.unread_rank_replies:skip_unread_replies",
        expects=(
            "03115f2bbd71",  # until 0.19
            "6e40dff58752",  # until 0.22
            "8d818f173f14",  # until 0.26
            "fb4ea1f78a6a",  # 0.27
            "fa145c55ce15",  # until 0.32
            "4a5f30e1174f",
        ),
        reason="in which order replies are read is in the method itself, and no setting changes it",
    ),
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm#49972"), report("vllm-project/vllm/pull/57846")],
    examples=[
        yes("qwen3", {"engine.tensor_parallel_size": 2}, vllm="0.32.0", patches="MultiprocExecutor.collective_rpc"),
        yes("qwen3", {"engine.pipeline_parallel_size": 2}, vllm="0.33.0", purpose="serve"),
        no("qwen3", vllm="0.32.0"),
        unknown("qwen3", {"engine.tensor_parallel_size": 2}),
    ],
)


_ATTRIBUTE = "_model_quirks_replies"


class _Rank:
    """Replies of one rank, without those to calls that have ended before they were read."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.unread = 0

    def dequeue(self, *args: Any, **named: Any) -> Any:
        while self.unread:
            self.queue.dequeue(*args, **named)
            self.unread -= 1
        return self.queue.dequeue(*args, **named)


class _Call:
    def __init__(self, rank: _Rank) -> None:
        self.rank = rank
        self.is_read = False

    def dequeue(self, *args: Any, **named: Any) -> Any:
        found = self.rank.dequeue(*args, **named)
        self.is_read = True
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rank.queue, name)


def skip_unread_replies(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``MultiprocExecutor.collective_rpc``, whose ranks reply in order, and without saying to what."""

    @functools.wraps(original)
    def collective_rpc(self: Any, *args: Any, **named: Any) -> Any:
        queues = self.response_mqs
        if (ranks := getattr(self, _ATTRIBUTE, None)) is None:
            ranks = [_Rank(queue) for queue in queues]
            setattr(self, _ATTRIBUTE, ranks)
        calls = [_Call(rank) for rank in ranks]
        self.response_mqs = calls
        try:
            return original(self, *args, **named)
        except Exception as error:
            # A call that ended before its first reply, and not by its time limit, may not have been sent.
            if isinstance(error, TimeoutError) or any(call.is_read for call in calls):
                aggregates = any(named.get(one) for one in ("kv_output_aggregator", "ec_output_aggregator"))
                only = None if aggregates else named.get("unique_reply_rank")
                for call in calls if only is None else [calls[only]]:
                    call.rank.unread += not call.is_read
            raise
        finally:
            self.response_mqs = queues

    return collective_rpc


async def scenario(lab: Lab) -> Outcome:
    """After a call that fails on both ranks, both answer the next one."""
    # By itself vLLM wants a NUMA node for each tensor-parallel rank.
    values = {
        "purpose": "eval",
        "engine": {"load_format": "auto", "tensor_parallel_size": 2},
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    }
    async with lab.worker(lab.checkpoint("qwen3"), values) as worker:
        engine = lab.engine(worker)
        found = [await _answer(engine, method) for method in ("no_such_method", "get_supported_tasks", "check_health")]
    return Outcome(found[1:] == [2, 2], "answers to the two calls after one that failed", f"{found[1:]}", "[2, 2]")


async def _answer(engine: Any, method: str) -> int | str:
    try:
        return len(await engine.collective_rpc(method))
    except Exception as error:
        return str(error)[:120]
