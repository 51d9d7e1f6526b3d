"""Speculative decoding on vLLM's CPU platform: tokens are sampled at a random temperature, and their logprobs are garbage.

What happens: every sampled request with a draft returns tokens that the model would hardly ever choose (26 nats below the
best, on a tiny model). With ``processed_logprobs`` their logprobs are off by as much, or NaN; with a top-k the engine can die
of an index out of bounds. Greedy decoding is right. The rejection sampler spreads each request's temperature, top-k and top-p
over its draft tokens with ``expand_batch_to_tokens``, into uninitialised memory. The CPU's version of that kernel
(``_expand_kernel_impl`` in utils/cpu_triton_utils.py) converts the target to 64-bit integers, writes into the copy and drops
it. vLLM then divides the logits by whatever the memory held.

When it can go: when vLLM's CPU kernel writes its output (vllm-project/vllm#55005, vllm-project/vllm#42638).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, fix, no, platform, report, setting, unknown, yes
from quirks_plugins.conditions import v1_model_runner
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    import torch

_DRAFT = {"engine.speculative_config": {"model": "draft", "num_speculative_tokens": 3}}

QUIRK = Quirk(
    id="cpu-speculative-sampling",
    title="Speculative decoding on vLLM's CPU platform samples at a random temperature, with logprobs that are off or NaN",
    match=platform("cpu") & v1_model_runner & setting("engine.speculative_config").is_set(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
        replacement="quirks_plugins.speculative.cpu_speculative_sampling:expand_batch_to_tokens",
        expects=("4a72e2584485", "b7eb18afe98e", "b937d69dd008"),
        reason="the CPU's kernel drops what it computes, and no setting keeps sampled requests away from it",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#55005"), fix("vllm-project/vllm/pull/42638")],
    evidence=StaticProbe("vllm.utils.cpu_triton_utils", r"torch\.ops\._C\.expand_kernel_impl\(\s+_ensure_int64\(output\)"),
    examples=[
        yes("qwen3", _DRAFT, vllm="0.32.0", platform="cpu", purpose="serve"),
        no("qwen3", _DRAFT, vllm="0.32.0", platform="cuda"),
        no("qwen3", vllm="0.32.0", platform="cpu"),
        unknown("qwen3", _DRAFT, vllm="0.32.0"),
    ],
)


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Give every token the value of its request: ``[num_tokens]`` of `x` ``[requests]``, whose `replace_from` is replaced.

    `cu_num_tokens` ``[requests]`` is the number of tokens up to and including each request.
    """
    import torch

    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts, output_size=num_tokens)


async def scenario(lab: Lab) -> Outcome:
    """The logprobs of samples with a draft are those of the trainer's softmax(logits / temperature)."""
    temperature = 0.5
    model = lab.checkpoint("qwen3")
    draft = {"method": "draft_model", "model": str(lab.checkpoint("qwen3", seed=1)), "num_speculative_tokens": 3}
    engine = {"load_format": "auto", "logprobs_mode": "processed_logprobs", "speculative_config": draft}
    async with lab.worker(model, {"engine": engine, "sampling": {"temperature": temperature}}) as worker:
        got = await lab.sample(worker)
    expected = lab.rescored(lab.trainer(model), got, temperature)
    return lab.close_logprobs(got, expected, measure=f"largest difference to log_softmax(logits / {temperature}), with a draft")
