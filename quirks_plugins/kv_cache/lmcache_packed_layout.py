"""LMCache with vLLM 0.26 and newer: prompts that it serves get keys and values of other places.

What happens: a prompt whose cache comes back from LMCache is answered with token salad up to the length limit, while all
counters look right; the same prompt computed anew is fine. vLLM 0.26.0 packs keys and values of a head into one row
(vllm-project/vllm#44455). ``LMCacheConnectorV1`` reads that as the older layout, and ``LMCacheMPConnector`` does so for models
with recurrent layers, and with FlashInfer's attention.

When it can go: when LMCache has a release with LMCache/LMCache#4467 and #4253, both open in September 2026; 0.5.2 to 0.5.4 were
reported. An engine that trains is refused these connectors anyway (`kv-connector-stale`).

Evidence: the reports, on vLLM 0.26.0, 0.27.0 and 0.28.0, with reproductions; not run by us.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, model_type, no, report, unknown, yes

_CONNECTOR = "engine.kv_transfer_config"
_V1 = {_CONNECTOR: {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}
_MP = {_CONNECTOR: {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}}
_RECURRENT = (
    *("falcon_h1", "granitemoehybrid", "kimi_linear", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
)
_name = Fact(f"{_CONNECTOR}.kv_connector")

QUIRK = Quirk(
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
        yes("qwen3", _V1, vllm="0.27.0", purpose="serve", advises="OffloadingConnector"),
        yes("qwen3_5", _MP, vllm="0.26.0", purpose="serve"),
        no("qwen3", _MP, vllm="0.27.0", purpose="serve"),
        unknown("qwen3", _V1, purpose="serve"),
    ],
)
