"""Pipeline parallelism with the synchronous engine is refused by old versions of vLLM, or leaves stages idle.

What happens: the synchronous engine of vLLM V0 raised
``NotImplementedError: Pipeline parallelism is only supported through AsyncLLMEngine`` (vllm-project/vllm#7413). V1 no longer
raises it, but the stages of a pipeline are busy at the same time only while requests keep coming, as they do with the
asynchronous engine. NeMo RL still asserts the rule, because its synchronous worker does not support several stages.

What this changes: more than one pipeline stage with the synchronous engine is refused.

When it can go: when a trainer runs its synchronous path over several stages as fast as over one.

Evidence: the rule is NeMo RL's; no synchronous worker runs here, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, no, report, yes
from quirks_plugins.conditions import PP, synchronous
from quirks_plugins.runs import parallel

QUIRK = Quirk(
    id="pp-needs-async",
    title="Pipeline parallelism with the synchronous engine is refused, or leaves stages idle",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.RULE,
    match=PP.above(1) & synchronous,
    adjustments=Refuse(
        "pipeline stages are kept busy by requests that keep coming, which is what the asynchronous engine is for; "
        "vLLM V0 refuses the synchronous one, and trainers do not run it",
        "set engine.async_engine: true, or engine.pipeline_parallel_size: 1",
    ),
    severity=Severity.CRASH,
    references=[
        report("https://github.com/vllm-project/vllm/issues/7413"),
        report("https://github.com/NVIDIA-NeMo/RL/pull/1081"),
    ],
    examples=[
        yes(settings=parallel(pp=2, asynchronous=False), refuses="engine.async_engine: true"),
        no(settings=parallel(pp=2, asynchronous=True)),
        no(settings=parallel(pp=1, asynchronous=False)),
        no(settings=parallel(pp=2)),
    ],
)
