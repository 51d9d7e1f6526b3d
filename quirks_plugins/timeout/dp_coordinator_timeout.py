"""Data-parallel groups: a coordinator that needs more than two minutes to start makes the whole group fail.

What happens: the group fails with
``RuntimeError: DP Coordinator process failed to report ZMQ addresses within timeout=120 seconds during startup``, although
VLLM_ENGINE_READY_TIMEOUT_S allows the engines ten minutes, or another time that the user set. The coordinator is a small
process, but it imports vLLM again, at the same moment as every engine of the node; from a network file system that takes
minutes. The limit is a constant in ``DPCoordinator._wait_for_zmq_addrs``.

When it can go: when the limit can be set, as vllm-project/vllm#43611 proposes; vllm-project/vllm#42343 raised it from 30 to 120
seconds.
"""

import multiprocessing.connection
import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_plugins.conditions import several_replicas
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import parallel

QUIRK = Quirk(
    id="dp-coordinator-timeout",
    title="A data-parallel group fails if its coordinator takes longer than 120 seconds to start, whatever limit was set",
    match=several_replicas,
    affected=Affected("vllm", introduced="0.26.0"),  # older releases were not examined
    adjustments=Patch(
        "vllm.v1.engine.coordinator:DPCoordinator._wait_for_zmq_addrs",
        wrapper="quirks_plugins.timeout.dp_coordinator_timeout:wrap_wait_for_addresses",
        expects=("d118c2fb711b",),
        reason="the limit is a constant",
    ),
    severity=Severity.CRASH,
    crash=r"DP Coordinator process failed to report ZMQ addresses",
    references=[
        report("vllm-project/vllm/pull/43611"),
        report("vllm-project/vllm/pull/42343"),
        report("PrimeIntellect-ai/prime-rl/pull/2804"),
    ],
    evidence=StaticProbe("vllm.v1.engine.coordinator", r"timeout = 120\n"),
    examples=[
        yes("qwen3_moe", parallel(dp=2), vllm="0.32.0"),
        no("qwen3_moe", vllm="0.32.0"),
        unknown("qwen3_moe", parallel(dp=2)),
    ],
)


#: Seconds that vLLM itself waits for its coordinator.
_OWN_LIMIT_S = 120


def wrap_wait_for_addresses(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the start of a data-parallel group wait for its coordinator as long as for its engines."""

    @wraps(original)
    def _wait_for_zmq_addrs(self: Any, zmq_addr_pipe: Any) -> Any:
        from vllm import envs

        longer = max(0, envs.VLLM_ENGINE_READY_TIMEOUT_S - _OWN_LIMIT_S)
        multiprocessing.connection.wait([zmq_addr_pipe, self.proc.sentinel], timeout=longer)
        return original(self, zmq_addr_pipe)  # which sees at once what has come, or waits the rest of the time

    return _wait_for_zmq_addrs


#: How much faster the clock runs.
_SPEED = 10
#: Seconds of the fast clock that the coordinator takes, beside its imports.
_START_S = 130


async def scenario(lab: Lab) -> Outcome:
    """A coordinator that starts slowly, but within the limit of the engines, is waited for."""
    import multiprocessing.connection
    from unittest.mock import patch

    from vllm.config import ParallelConfig
    from vllm.plugins import load_general_plugins
    from vllm.v1.engine.coordinator import DPCoordinator, DPCoordinatorProc

    from quirks_core.hook.in_force import in_force

    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a forked coordinator would have the slow start twice
    wait = multiprocessing.connection.wait

    def fast(objects: Any, timeout: float | None = None) -> Any:
        return wait(objects, timeout and timeout / _SPEED)

    values = {"engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": "engine"}}
    with in_force(lab.plan(lab.checkpoint("qwen3_moe"), values)):
        load_general_plugins()  # as `AsyncEngineArgs` does; it puts the plan in force in this process
        with patch("multiprocessing.connection.wait", fast), patch.object(DPCoordinatorProc, "run_coordinator", _start_slowly):
            coordinator = DPCoordinator(ParallelConfig(data_parallel_size=2, data_parallel_size_local=2))
        coordinator.shutdown()
    return Outcome(True, f"a coordinator that starts within {_START_S} seconds", "it is waited for", "it is waited for")


def _start_slowly(**arguments: Any) -> None:
    from vllm.v1.engine.coordinator import DPCoordinatorProc

    time.sleep(_START_S / _SPEED)
    DPCoordinatorProc.run_coordinator(**arguments)
