"""A sleep of level 2 drops the base model, and a trainer of LoRA adapters sends adapters alone.

What happens: after waking up the engine generates garbage ("!!!!"), or what happens to be in memory, and nothing is reported.
Level 2 discards all weights and keeps buffers (``Worker.sleep``); an adapter brings back none of them. ms-swift sends the whole
model in that case (modelscope/ms-swift#7017), TRL calls ``reload_weights`` (huggingface/trl#4571).

When it can go: when vLLM refuses to generate from weights that it discarded; a warning was proposed in vllm-project/vllm#54235.

Evidence: read in vLLM 0.16.0, 0.26.0 and 0.33.0; no CPU engine sleeps. Our own worker refuses to generate until weights came.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import our_worker

_BOTH = {"engine.enable_lora": True, "engine.enable_sleep_mode": True}

QUIRK = Quirk(
    id="lora-sleep-level",
    title="A sleep of level 2 drops the base model, which updates of LoRA adapters do not bring back",
    kind=Kind.RULE,
    match=setting("engine.enable_lora").is_true()
    & setting("engine.enable_sleep_mode").is_true()
    & purpose("rollout")
    & ~our_worker,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Advise(
        "updates of LoRA adapters do not bring back a base model that a sleep of level 2 has dropped: sleep at level 1, or "
        "call reload_weights after waking up"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("modelscope/ms-swift/pull/7017"),
        report("vllm-project/vllm/pull/54235"),
        report("huggingface/trl/pull/4571"),
    ],
    examples=[
        yes("qwen3", _BOTH, vllm="0.32.0", advises="level 1"),
        no("qwen3", _BOTH, vllm="0.32.0", purpose="serve"),
        no("qwen3", {**_BOTH, "engine.generate_from_dummy": False}, vllm="0.32.0"),
        no("qwen3", {"engine.enable_lora": True}, vllm="0.32.0"),
        no("qwen3", {"engine.enable_sleep_mode": True}, vllm="0.32.0"),
        unknown("qwen3", _BOTH),
    ],
)
