"""Before vLLM 0.29.0, one request with a stop id outside of the vocabulary ends the engine.

What happens: a request with ``min_tokens`` and a ``stop_token_ids`` entry that the model's vocabulary does not have (such as
the end of turn of another model's tokenizer) ends the engine: a device-side assertion on CUDA, an ``IndexError`` on a CPU. On
the V2 model runner it writes outside of the logits instead. All other requests are lost, and the server has to be started
again. A proxy that kept sending one such request took down 12 of 14 servers (gonka-ai/gonka#1170). These ids are indices into
the logits while a minimum length holds, and vLLM checks them nowhere.

When it can go: when vLLM 0.28 is no longer supported (vllm-project/vllm#54196).
"""

from collections.abc import Callable
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, SymbolProbe, fix, no, purpose, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runtime.evidence import answer

QUIRK = Quirk(
    id="stop-ids-vocabulary",
    title="One request with a stop id outside of the vocabulary ends the engine",
    match=purpose("rollout", "eval", "serve"),
    affected=Affected("vllm", introduced="0.26.0", fixed="0.29.0"),
    adjustments=Patch(
        "vllm.sampling_params:SamplingParams.verify",
        wrapper="quirks_plugins.runtime.stop_ids_vocabulary:wrap_verify",
        expects=("6d0abb01e1b9", "e8539372ce55", "68f947da8220"),
        reason="what a request may hold is checked in code, and no setting adds a check",
    ),
    severity=Severity.CRASH,
    crash=r"IndexError|index .* out of bounds|device-side assert|EngineDeadError|EngineCore encountered an issue",
    references=[report("vllm-project/vllm#54195"), report("gonka-ai/gonka/pull/1170"), fix("vllm-project/vllm/pull/54196")],
    evidence=SymbolProbe("vllm.sampling_params:SamplingParams._validate_stop_token_ids", present_means_affected=False),
    examples=[
        yes("qwen3", vllm="0.28.0", patches="SamplingParams.verify"),
        yes("qwen3", vllm="0.26.0", purpose="serve"),
        no("qwen3", vllm="0.29.0"),
        unknown("qwen3", vllm="0.25.1"),
    ],
    cost="microseconds for each request",
)


def wrap_verify(verify: Callable[..., None]) -> Callable[..., None]:
    """Returns a `SamplingParams.verify` that refuses stop ids outside of the model's vocabulary."""

    def verify_stop_ids(self: Any, model_config: Any, *args: Any, **kwargs: Any) -> None:
        size = model_config.get_vocab_size()
        if outside := [token for token in self.stop_token_ids or () if not 0 <= token < size]:
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(f"stop_token_ids {outside} are outside of the model's vocabulary of {size} tokens")
        verify(self, model_config, *args, **kwargs)

    return verify_stop_ids


async def scenario(lab: Lab) -> Outcome:
    """A request with a stop id outside of the vocabulary is refused, and the engine answers the next one."""
    async with lab.worker(lab.checkpoint("qwen3"), {"engine": {"load_format": "auto"}}) as worker:
        refused = await answer(lab.engine(worker), "outside", min_tokens=2, stop_token_ids=[100_000])
        got = await answer(lab.engine(worker), "next")
    passed = "vocabulary" in refused and got == "4 tokens"
    return Outcome(passed, "a request with the stop id 100000, and the next one", f"{refused}; {got}", "refused; 4 tokens")
