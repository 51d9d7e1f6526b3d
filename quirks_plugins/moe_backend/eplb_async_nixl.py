"""Asynchronous EPLB over NIXL between nodes stops for ever, while the engine's health stays green.

What happens: experts are no longer moved, "steps until the next rearrangement" counts downward without end, and every step pays
for a reduction over all ranks that can only say no. Answers are right. The transfer's thread waits for a main thread that has
left early (vllm-project/vllm#57883). Asynchronous is EPLB's default from 0.23.0 on.

When it can go: when vllm-project/vllm#57905 or another fix is in a release.

Evidence: the report (16 ranks on two nodes) and ``EPLBConfig`` of 0.20.0, 0.23.0, 0.26.0 and 0.33.0; it was not run by us.
"""

from quirks_core import Advise, Affected, Quirk, Severity, no, package, report, setting, unknown, yes
from quirks_plugins.runs import QWEN3_MOE

_EPLB, _CONFIG = "engine.enable_eplb", "engine.eplb_config"
_ASYNC = f"{_CONFIG}.use_async"
_ON = {_EPLB: True, _CONFIG: {"communicator": "nixl"}, "cluster.num_nodes": 2}

QUIRK = Quirk(
    id="eplb-async-nixl",
    title="Asynchronous EPLB over NIXL can stop for ever between nodes, without a word",
    match=setting(_EPLB).is_true()
    & setting(f"{_CONFIG}.communicator").one_of("nixl")
    & setting("cluster.num_nodes").above(1)
    & (setting(_ASYNC).is_true() | (~setting(_ASYNC).is_set() & package("vllm", introduced="0.23.0"))),
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Advise(
        'asynchronous EPLB over NIXL was seen to stop for ever: watch "steps until the next rearrangement" in the log, which '
        f"must not be negative, or set {_ASYNC}: false"
    ),
    severity=Severity.SLOW,
    references=[report("vllm-project/vllm#57883"), report("vllm-project/vllm/pull/43219")],
    examples=[
        yes(QWEN3_MOE, _ON, vllm="0.33.0", purpose="serve", advises="use_async: false"),
        no(QWEN3_MOE, {**_ON, _CONFIG: {"communicator": "nixl", "use_async": False}}, vllm="0.33.0"),
        no(QWEN3_MOE, {**_ON, _CONFIG: {}}, vllm="0.33.0"),
        no(QWEN3_MOE, {**_ON, "cluster.num_nodes": 1}, vllm="0.33.0"),
        no(QWEN3_MOE, _ON, vllm="0.22.0"),
        unknown(QWEN3_MOE, _ON),
    ],
)
