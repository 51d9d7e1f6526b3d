"""Data-parallel replicas get the strategy that fits what they must share, unless the user set one.

What happens: data parallelism can mean three things, and the wrong one can make a run hang. With ``actors`` each Ray actor has
an engine, and all engines are ranks of one vLLM data-parallel group with external load balancing; experts are sharded over DP
x TP, and idle ranks keep stepping, so nothing hangs. With ``engine`` one engine owns all ranks. With ``independent`` the
engines share nothing. Trainers do not choose between them deliberately: one passed the data-parallel size on only with EP > 1,
and dense models hung (verl-project/verl#5607); another forbids the asynchronous engine wherever EP differs from TP
(NVIDIA-NeMo/RL#1101).

What this changes: the quirk sets a default that depends on what must be shared. If no experts are shared beyond a replica (a
dense model, no expert parallelism, or EP within TP), the engines need no lock-step, and the default is ``independent``.
Otherwise the replicas must be ranks of one group: the default is ``actors``, or ``engine`` for the synchronous engine, because
only the asynchronous engine has external load balancing. A strategy that the user set stays, and the other rules of this flag
check it. An engine that another program starts (``vllm serve`` with several ranks) leaves no choice: it owns its ranks.

When it can go: never; it is a choice, not a workaround.

Evidence: none of its own, because nothing is wrong without it. ``dp-dense-group`` and ``dp-independent-experts`` show the
failures that it avoids.
"""

from __future__ import annotations

from quirks_core import Default, Kind, ModelFlag, Quirk, Severity, fix, no, report, typed, yes
from quirks_plugins.conditions import (
    beyond_one_replica,
    one_engine,
    several_replicas,
    synchronous,
)
from quirks_plugins.runs import QWEN3_MOE, parallel

_SLOT = "parallel.dp_strategy"

QUIRK = Quirk(
    id="dp-strategy",
    title="Data-parallel ranks that share experts must form one group, and ranks that share nothing should not",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.FEATURE,
    match=several_replicas & (~one_engine | typed(_SLOT)),
    adjustments=[
        Default(
            _SLOT,
            "independent",
            reason="no experts are shared beyond a replica (dense model, no expert parallelism, or EP within TP), "
            "so engines that share nothing need no lock-step",
            when=~beyond_one_replica,
        ),
        Default(
            _SLOT,
            "actors",
            reason="experts are shared over DP x TP, so every engine must be a rank of one vLLM data-parallel group",
            when=beyond_one_replica & ~synchronous,
        ),
        Default(
            _SLOT,
            "engine",
            reason="experts are shared over DP x TP, and external load balancing is the asynchronous engine's: "
            "one engine must own its ranks",
            when=beyond_one_replica & synchronous,
        ),
    ],
    severity=Severity.CRASH,
    references=[
        report("https://github.com/NVIDIA-NeMo/RL/issues/1101"),
        report("https://github.com/NVIDIA-NeMo/RL/pull/2517"),
        report("https://github.com/verl-project/verl/issues/5607"),
        fix("https://github.com/verl-project/verl/pull/5609"),
    ],
    examples=[
        yes("qwen3", parallel(dp=2), gives={"parallel.dp_strategy": "independent"}),
        yes(QWEN3_MOE, parallel(dp=2, flag=True), gives={"parallel.dp_strategy": "actors"}),
        yes(
            QWEN3_MOE,
            parallel(dp=2, tp=2, ep=2),
            gives={"parallel.dp_strategy": "independent"},
        ),
        yes(
            QWEN3_MOE,
            parallel(asynchronous=False, dp=2, tp=1, ep=2),
            gives={"parallel.dp_strategy": "engine"},
        ),
        no(QWEN3_MOE, parallel(dp=1, tp=8)),
        no("qwen3"),
    ],
    cost="in one group, idle ranks step along with busy ones; independent engines each hold all experts",
)
