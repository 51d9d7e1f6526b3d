"""Expert parallelism has no effect in an engine of one rank.

What happens: every rank holds all experts although ``enable_expert_parallel`` is on, and there is neither an error nor a
warning. vLLM shards experts only where DP x TP is above 1. An engine of one rank, also one of several independent engines,
accepts the flag and ignores it.

What this changes: nothing; the plan notes that the flag has no effect. It is no error, because the same configuration may serve
one rank and many.

When it can go: when vLLM itself warns about it.

Evidence: a static probe of vLLM's definition. It shows how vLLM works, not a defect.
"""

from __future__ import annotations

from quirks_core import Advise, Kind, ModelFlag, Quirk, Severity, no, report, unknown, yes
from quirks_plugins.conditions import TP, expert_flag, independent, mixture, several_replicas
from quirks_plugins.dp_ep_strategy.probes import flag_alone_decides
from quirks_plugins.runs import QWEN3_MOE, parallel

QUIRK = Quirk(
    id="ep-alone",
    title="Expert parallelism over one rank is silently none",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.RULE,
    match=expert_flag & mixture & ~TP.above(1) & (~several_replicas | independent),
    adjustments=Advise(
        "engine.enable_expert_parallel has no effect: each engine is one rank, and holds all experts; "
        "raise engine.tensor_parallel_size, or engine.data_parallel_size with parallel.dp_strategy: actors or engine"
    ),
    severity=Severity.NOISE,
    references=report("https://github.com/NVIDIA-NeMo/RL/pull/1495"),
    evidence=flag_alone_decides,
    examples=[
        yes(QWEN3_MOE, parallel(flag=True), advises="engine.enable_expert_parallel has no effect"),
        yes(QWEN3_MOE, parallel(flag=True, pp=2)),
        yes(
            QWEN3_MOE,
            parallel(dp=2, flag=True, strategy="independent"),
        ),
        no(QWEN3_MOE, parallel(tp=2, flag=True)),
        no(QWEN3_MOE, parallel(dp=2, flag=True)),
        no("qwen3", parallel(flag=True)),
        no(QWEN3_MOE),
        unknown(settings=parallel(flag=True)),
    ],
)
