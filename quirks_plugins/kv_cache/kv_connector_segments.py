"""A KV connector with expandable segments under PyTorch's newer name: vLLM's own check does not see them.

What happens: connectors that register the memory of the KV cache (NIXL, Mooncake) keep addresses of pages that PyTorch may have
moved, and the first transfer between nodes fails ("IBV_WC_REM_ACCESS_ERR", "NIXL_ERR_REMOTE_DISCONNECT"). vLLM refuses a
connector with ``expandable_segments:True`` in ``PYTORCH_CUDA_ALLOC_CONF`` (``VllmConfig``, from 0.21.0 on); it looks at no
other name. An engine with sleep mode keeps its cache elsewhere and is not concerned.

When it can go: when that check asks the allocator, as sleep mode has done since 0.31.0. Read in 0.21.0, 0.30.0 and 0.33.0.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, environment, no, report, setting, unknown, yes

_ALIAS = "PYTORCH_ALLOC_CONF"
_ON = {_ALIAS: "expandable_segments:True"}
_CONNECTED = {"engine.kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}

QUIRK = Quirk(
    id="kv-connector-segments",
    title="vLLM refuses expandable segments beside a KV connector, but not under the newer name of the variable",
    match=setting("engine.kv_transfer_config.kv_connector").is_set()
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
