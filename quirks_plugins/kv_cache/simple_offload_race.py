"""``SimpleCPUOffloadConnector``: under load, blocks come back from CPU memory with other contents than were computed.

What happens: answers begin well and collapse into loops and mixed scripts, now and then, with many requests at once, without
an error. Copies to CPU memory run on a stream of their own; before 0.24.0 they do not wait for the kernels that write a block.
Also in 0.33.0 copies back do not wait for the kernels that still read the memory they go to (vllm-project/vllm#47282, open);
far fewer answers are concerned. ``OffloadingConnector`` waits both ways.

When it can go: when vllm-project/vllm#47282 is fixed. Read in 0.18.0, which has no such connector, 0.22.0, 0.24.0, 0.26.0,
0.28.0 and 0.33.0 (``v1/simple_kv_offload``). ``VLLM_USE_SIMPLE_KV_OFFLOAD=1`` selects it, too. Not run by us.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, described, no, report, setting, unknown, yes
from quirks_core.declaration.match import Fact, environment

_CONNECTOR, _VARIABLE = "engine.kv_transfer_config", "VLLM_USE_SIMPLE_KV_OFFLOAD"
_SIMPLE = {_CONNECTOR: {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}}
_named = described(
    Fact(f"{_CONNECTOR}.kv_connector").one_of("SimpleCPUOffloadConnector")
    | (environment(_VARIABLE).one_of("1") & setting("engine.kv_offloading_size").is_set()),
    "the KV cache goes to CPU memory by SimpleCPUOffloadConnector",
    "the KV cache does not go to CPU memory by SimpleCPUOffloadConnector",
)

QUIRK = Quirk(
    id="simple-offload-race",
    title="SimpleCPUOffloadConnector copies KV blocks that are still being written, or read",
    match=_named,
    affected=Affected("vllm", introduced="0.22.0"),
    adjustments=Advise(
        "SimpleCPUOffloadConnector can hand back KV blocks with wrong contents under load: take OffloadingConnector, and leave "
        f"{_VARIABLE} unset"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#45704"),
        report("vllm-project/vllm/pull/46278"),
        report("vllm-project/vllm#47282"),
    ],
    evidence=StaticProbe(
        "vllm.v1.simple_kv_offload.worker", r"is_store=False,\s+event_idx=[^\n]*\n\s+events_list=[^\n]*\n\s+\)"
    ),
    examples=[
        yes("qwen3", _SIMPLE, vllm="0.23.0", advises="OffloadingConnector"),
        yes("qwen3", {"engine.kv_offloading_size": 100}, vllm="0.33.0", env={_VARIABLE: "1"}, purpose="serve"),
        no("qwen3", {"engine.kv_offloading_size": 100}, vllm="0.33.0"),
        unknown("qwen3", _SIMPLE),
    ],
)
