"""With MTP or EAGLE drafts, ``prompt_logprobs`` are those of overwritten memory, on the V1 model runner with CUDA graphs.

What happens: the logprobs of a prompt, which rescoring and reference models use, are wrong for prompts that fit into a CUDA
graph (up to 512 tokens by default). Longer prompts and all generated tokens are right, and nothing is logged. The V1 runner
runs the drafter before it computes the logprobs of prompts. All CUDA graphs share one memory pool, so the drafter's graph
overwrites the hidden states that these logprobs are computed from. 0.29 and 0.30 still take that runner for a ``draft_model``.

When it can go: with vllm-project/vllm#53520, which is open, or when no platform uses the V1 runner.

Evidence: none of our own, because it shows only with CUDA graphs. On a GPU with ``VLLM_USE_V2_MODEL_RUNNER=0``, compare the
logprobs of a prompt with and without ``speculative_config``.
"""

from collections.abc import Callable
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, fix, no, platform, report, setting, unknown, yes
from quirks_plugins.conditions import v1_model_runner

_MTP = {"engine.speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
_NEXT = {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "num_experts": 8}

QUIRK = Quirk(
    id="prompt-logprobs-drafts",
    title="prompt_logprobs are computed from memory that an MTP or EAGLE drafter has overwritten",
    match=platform("cuda", "rocm")
    & v1_model_runner
    & setting("engine.speculative_config.method").matches("mtp|eagle|draft_model|dflash")
    & ~setting("engine.enforce_eager").is_true(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens",
        wrapper="quirks_plugins.logprobs.prompt_logprobs_drafts:wrap_sample_tokens",
        expects=("26688d182281", "dd2875682121", "57f6d9fdedbe"),
        reason="the order of drafter and prompt logprobs is in the runner's code",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#53488"), fix("vllm-project/vllm/pull/53520")],
    examples=[
        yes(_NEXT, _MTP, vllm="0.28.0", platform="cuda", patches="GPUModelRunner.sample_tokens"),
        yes(_NEXT, _MTP, vllm="0.27.0", platform="cuda", purpose="serve"),
        no("qwen3_next", _MTP, vllm="0.32.0", platform="cuda"),
        no("qwen3_next", {**_MTP, "engine.enforce_eager": True}, vllm="0.28.0", platform="cuda"),
        no("qwen3", {"engine.speculative_config": {"method": "ngram"}}, vllm="0.28.0", platform="cuda"),
        no("qwen3_next", _MTP, vllm="0.28.0", platform="cpu"),
        unknown("qwen3_next", _MTP, vllm="0.28.0"),
    ],
    cost="one copy of the step's hidden states, in steps that compute logprobs of prompts",
)


def wrap_sample_tokens(sample: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a `sample_tokens` that keeps the hidden states of prompts from the drafter's CUDA graph."""

    def sample_with_own_states(self: Any, grammar_output: Any) -> Any:
        state = self.execute_model_state
        if state is not None and self.num_prompt_logprobs and state.hidden_states is not None:
            self.execute_model_state = state._replace(hidden_states=state.hidden_states.clone())
        return sample(self, grammar_output)

    return sample_with_own_states
