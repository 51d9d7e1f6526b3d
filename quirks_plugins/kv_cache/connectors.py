"""KV connectors that hand back other keys and values than were computed, or end the engine, one row each.

What happens: ``kv-connector-segments``: connectors that register the memory of the KV cache (NIXL, Mooncake) keep addresses of
pages that PyTorch may have moved, and the first transfer between nodes fails ("IBV_WC_REM_ACCESS_ERR",
"NIXL_ERR_REMOTE_DISCONNECT"). vLLM looks for expandable segments in ``PYTORCH_CUDA_ALLOC_CONF`` alone (``VllmConfig``, from
0.21.0 on).

``kv-transfer-aborted``: if both transfers of an aborted request end in the same step, the first one frees the request, and the
second one looks for it: "assert req_id in self.requests" (``Scheduler._update_from_kv_xfer_finished``) ends all data-parallel
ranks.

``lmcache-packed-layout``: a cached prompt is answered with token salad, while all counters look right. vLLM 0.26.0 packs keys
and values of a head into one row (vllm-project/vllm#44455). ``LMCacheConnectorV1`` reads that as the older layout,
``LMCacheMPConnector`` does so for models with recurrent layers, and with FlashInfer's attention. A rollout is refused both
(`kv-connector-stale`).

``simple-offload-race``: answers begin well and collapse into loops. Before 0.24.0 copies to CPU memory do not wait for the
kernels that write a block; also in 0.33.0 copies back do not wait for those that still read the memory they go to, which
concerns far fewer answers. ``OffloadingConnector`` waits both ways.

When it can go: when vLLM's check asks the allocator, as sleep mode has done since 0.31.0; when vLLM passes over requests that
are gone; when LMCache has a release with LMCache/LMCache#4467 and #4253; when vllm-project/vllm#47282 is fixed.

Evidence: these sources of 0.18.0 to 0.33.0, prime-rl's patch, and the reports (LMCache 0.5.2 to 0.5.4 on 0.26 to 0.28); not run
by us.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, described, environment, model_type, purpose, setting

_ALIAS, _CONNECTOR = "PYTORCH_ALLOC_CONF", "engine.kv_transfer_config"
_ON = {_ALIAS: "expandable_segments:True"}
_CONNECTED = {_CONNECTOR: {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}

KV_CONNECTOR_SEGMENTS = Quirk(
    id="kv-connector-segments",
    title="vLLM refuses expandable segments beside a KV connector, but not under the newer name of the variable",
    match=setting(f"{_CONNECTOR}.kv_connector").is_set()
    & environment(_ALIAS).matches("expandable_segments:True")
    & ~environment("PYTORCH_CUDA_ALLOC_CONF").is_set()
    & ~setting("engine.enable_sleep_mode").is_true()
    & ~setting("engine.enable_cumem_allocator").is_true(),
    affected=Affected("vllm", introduced="0.21.0"),
    adjustments=Advise(
        f"expandable segments can move the KV cache that a connector has registered, and vLLM does not see them in {_ALIAS}: "
        "take expandable_segments:True out of the engine's environment"
    ),
    severity=Severity.CRASH,
    references=report("vllm-project/vllm/pull/54351"),
    evidence=StaticProbe("vllm.config.vllm", r'"expandable_segments:True" not in os\.environ'),
    examples=[
        yes("qwen2", _CONNECTED, env=_ON, vllm="0.33.0", advises=_ALIAS),
        yes("qwen2", _CONNECTED, env=_ON, vllm="0.21.0", purpose="serve"),
        no("qwen2", {**_CONNECTED, "engine.enable_sleep_mode": True}, env=_ON, vllm="0.33.0"),
        no("qwen2", _CONNECTED, vllm="0.33.0"),
        unknown("qwen2", _CONNECTED, env=_ON),
    ],
)

_PARTS = f"{_CONNECTOR}.kv_connector_extra_config.connectors.kv_connector"
_NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
_transfers = described(
    Fact(f"{_CONNECTOR}.kv_connector").one_of("NixlConnector") | Fact(_PARTS).any_in("NixlConnector"),
    "the KV connector is, or combines, `NixlConnector`",
    "the KV connector is not `NixlConnector`",
)

KV_TRANSFER_ABORTED = Quirk(
    id="kv-transfer-aborted",
    title="An aborted request whose KV transfers end in one step ends an engine with NIXL",
    match=purpose("rollout") & _transfers,
    affected=Affected("vllm", introduced="0.22.0"),
    adjustments=Advise(
        "aborting requests can end this engine while their KV cache is under way: let rollouts finish in place of aborting "
        "them, also around weight updates (/pause?mode=keep), and give clients no time limit of their own"
    ),
    severity=Severity.CRASH,
    references=report("https://github.com/PrimeIntellect-ai/prime-rl/blob/main/src/prime_rl/inference/patches.py"),
    examples=[
        yes("qwen3", {_CONNECTOR: _NIXL}, vllm="0.28.0", advises="mode=keep"),
        yes(
            "qwen3",
            {_CONNECTOR: {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [_NIXL]}}},
            vllm="0.33.0",
        ),
        no("qwen3", {_CONNECTOR: {**_NIXL, "kv_connector": "OffloadingConnector"}}, vllm="0.28.0"),
        no("qwen3", {_CONNECTOR: _NIXL}, vllm="0.28.0", purpose="serve"),
        no("qwen3", vllm="0.28.0"),
        unknown("qwen3", {_CONNECTOR: _NIXL}),
    ],
)

_LMCACHE = {_CONNECTOR: {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}
_LMCACHE_MP = {_CONNECTOR: {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}}
_RECURRENT = (
    *("falcon_h1", "granitemoehybrid", "kimi_linear", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
)
_name = Fact(f"{_CONNECTOR}.kv_connector")

LMCACHE_PACKED_LAYOUT = Quirk(
    id="lmcache-packed-layout",
    title="LMCache misreads the layout that the KV cache has since vLLM 0.26",
    match=_name.one_of("LMCacheConnectorV1") | (_name.one_of("LMCacheMPConnector") & model_type(*_RECURRENT)),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Advise(
        "LMCache up to 0.5.4 takes this vLLM's packed keys and values for another layout, and cached prompts get garbage: "
        "install a newer LMCache, if its notes name LMCache#4467 and #4253, take vLLM 0.25, or OffloadingConnector"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("LMCache/LMCache#4463"),
        report("LMCache/LMCache#4247"),
        report("LMCache/LMCache/pull/4467"),
        report("ai-dynamo/dynamo#14416"),
    ],
    examples=[
        yes("qwen3", _LMCACHE, vllm="0.27.0", purpose="serve", advises="OffloadingConnector"),
        yes("qwen3_5", _LMCACHE_MP, vllm="0.26.0", purpose="serve"),
        no("qwen3", _LMCACHE_MP, vllm="0.27.0", purpose="serve"),
        no("qwen3", {_CONNECTOR: {"kv_connector": "OffloadingConnector"}}, vllm="0.27.0", purpose="serve"),
        no("qwen3", vllm="0.27.0", purpose="serve"),
        unknown("qwen3", _LMCACHE, vllm="0.25.1", purpose="serve"),
        unknown("qwen3", _LMCACHE, purpose="serve"),
    ],
)

_VARIABLE = "VLLM_USE_SIMPLE_KV_OFFLOAD"
_SIMPLE = {_CONNECTOR: {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}}
_simple = described(
    Fact(f"{_CONNECTOR}.kv_connector").one_of("SimpleCPUOffloadConnector")
    | (environment(_VARIABLE).one_of("1") & setting("engine.kv_offloading_size").is_set()),
    "the KV cache goes to CPU memory by SimpleCPUOffloadConnector",
    "the KV cache does not go to CPU memory by SimpleCPUOffloadConnector",
)

SIMPLE_OFFLOAD_RACE = Quirk(
    id="simple-offload-race",
    title="SimpleCPUOffloadConnector copies KV blocks that are still being written, or read",
    match=_simple,
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
        no("qwen3", {_CONNECTOR: {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}}, vllm="0.23.0"),
        no("qwen3", vllm="0.23.0"),
        unknown("qwen3", _SIMPLE),
    ],
)
