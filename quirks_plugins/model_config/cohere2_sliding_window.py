"""Cohere2 (Command R7B, Command A, Command A Vision): vLLM's sliding window is one token longer than the trainer's.

What happens: as soon as a sequence is longer than the window, rollouts are not what the trainer computes, without an error. On
a tiny model with a window of 16 tokens, 18 of 72 greedy tokens agree with transformers; released models have a window of 4096.
vLLM passes ``config.sliding_window + 1`` to the attention of these layers (``CohereAttention``), with the comment that Cohere
trained them so; transformers takes ``config.sliding_window``. For serving nothing changes, because vLLM's window may well be
that of the pretraining.

When it can go: when transformers and vLLM agree; ``docs/upstream/cohere2-sliding-window.md`` is a request to both.
"""

from typing import Any

from quirks_core import Affected, Default, Quirk, RunContext, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, purpose, setting
from quirks_plugins.kit import Lab, Outcome

_SLOT = "engine.hf_overrides"
_SHORTER = {"sliding_window": 4095}
_R7B = {"model_type": "cohere2", "sliding_window": 4096}


def _shorter(context: RunContext) -> dict[str, Any]:
    window = {"sliding_window": context.model.text_config["sliding_window"] - 1}
    return {"text_config": window} if "text_config" in context.model.config else window


QUIRK = Quirk(
    id="cohere2-sliding-window",
    title="Cohere2's sliding window is one token longer in vLLM than in the trainer",
    match=purpose("rollout")
    & model_type("cohere2", "cohere2_moe", "cohere2_vision")
    & Fact("model.text_config.sliding_window").above(1)
    & ~setting(f"{_SLOT}.sliding_window").is_set(),
    affected=Affected("vllm", introduced="0.29.0"),
    adjustments=Default(_SLOT, _shorter, reason="vLLM adds one token to the sliding window, and transformers does not"),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/11203"), report("vllm-project/vllm/pull/11583")],
    evidence=StaticProbe("vllm.model_executor.models.commandr", r"self\.sliding_window = config\.sliding_window \+ 1"),
    examples=[
        yes(_R7B, vllm="0.32.0", gives={_SLOT: _SHORTER}),
        yes({"model_type": "cohere2_vision", "text_config": _R7B}, vllm="0.32.0", gives={_SLOT: {"text_config": _SHORTER}}),
        no(_R7B, {_SLOT: {"sliding_window": 100}}, vllm="0.32.0"),
        no(_R7B, vllm="0.28.0"),
        no(_R7B, vllm="0.32.0", purpose="serve"),
        unknown(_R7B),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The engine generates what transformers does, beyond the window."""
    from worker.lab.kit.checkpoints import build

    model = build("cohere2:window", lab.folder / "cohere2")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
