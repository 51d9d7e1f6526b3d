"""Distillation: vLLM refuses a request for more than 20 logprobs of a position.

What happens: the first request of a distillation run for the 64 or 128 most probable tokens fails with "Requested sample
logprobs of 64, which is greater than max allowed: 20" (``SamplingParams._validate_logprobs``; ``max_logprobs`` of vLLM's
``ModelConfig`` is the cap). The engine has started by then. If a trainer builds the engine, the user often cannot set the
argument, or the trainer fixes it to 1 (modelscope/ms-swift#9644, NovaSky-AI/SkyRL#1357).

vLLM allocates nothing for logprobs that no request needs.

When it can go: when vLLM has no cap for callers of the engine itself.
"""

from typing import Any

from quirks_core import Default, Fact, Kind, Quirk, Severity, StaticProbe, no, report, yes
from quirks_plugins.kit import Lab, Outcome

QUIRK = Quirk(
    id="max-logprobs-cap",
    title="A distillation run's request for the logprobs of more than 20 tokens is refused",
    kind=Kind.RULE,
    match=Fact("recipe").matches(r"distil|\b(gkd|m?opd|opsd)\b"),
    adjustments=Default("engine.max_logprobs", -1),
    severity=Severity.CRASH,
    crash="greater than max allowed",
    references=[report("modelscope/ms-swift#9644"), report("NovaSky-AI/SkyRL/pull/1357"), report("vllm-project/vllm#5299")],
    evidence=StaticProbe("vllm.config.model", r"max_logprobs: int = (?:Field\(default=)?20\b"),
    examples=[
        yes(recipe="distillation-qwen3-32b-to-1.7b", gives={"engine.max_logprobs": -1}),
        yes(settings={"engine.max_logprobs": 64}, recipe="Distill-R1", gives={}),
        yes(recipe="qwen3-opd-1.7b", purpose="eval"),
        yes(recipe="mopd-v2"),
        no(recipe="copd"),
    ],
)

#: More than vLLM's default.
_MOST = 64


async def scenario(lab: Lab) -> Outcome:
    """A request of a distillation recipe gets the logprobs of its 64 most probable tokens."""
    values = {"recipe": "distillation", "engine": {"load_format": "auto"}}
    async with lab.worker(lab.checkpoint("qwen3"), values) as worker:
        got = await _logprobs(lab.engine(worker))
    return Outcome(got >= _MOST, "logprobs of the first position", str(got), f"at least {_MOST}")


async def _logprobs(engine: Any) -> int:
    from vllm import SamplingParams

    from worker.lab.kit.lab import PROMPTS

    params = SamplingParams(max_tokens=1, logprobs=_MOST)
    async for output in engine.generate({"prompt_token_ids": list(PROMPTS[0])}, params, "teacher"):
        completion = output.outputs[0]
    return len(completion.logprobs[0])
