"""Sampling defaults of a checkpoint's ``generation_config.json`` reach requests that leave them open.

What happens: samples are drawn with the checkpoint's repetition penalty, top-k or temperature, and their logprobs are those of
another distribution than the trainer assumes. A comment in NVIDIA-NeMo/RL#3497 measured it for the penalty of 1.1 that
Qwen2.5-0.5B-Instruct ships: 59 percent of the tokens are off by more than a percent. Since vllm-project/vllm#12622 every
sampling parameter that a request leaves open comes from the checkpoint, and ``max_new_tokens`` of that file becomes a limit for
every request. Our own worker sends all sampling parameters with every request, and is not affected. What vLLM builds from
``ModelConfig.get_diff_sampling_param`` is: its own servers and ``LLM.generate``. Tokens that end a sequence still come from the
file.

When it can go: when vLLM's default is neutral again.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from quirks_core import Default, Kind, Quirk, Severity, fix, no, purpose, report, yes
from quirks_plugins.kit import Generated, Lab, Outcome

QUIRK = Quirk(
    id="generation-config-leak",
    title="Requests that leave their sampling open inherit penalties, top-k and temperature from the checkpoint",
    kind=Kind.RULE,
    match=purpose("rollout"),
    adjustments=Default("engine.generation_config", "vllm"),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/12622"),
        report("NVIDIA-NeMo/RL#3497"),
        fix("OpenPipe/ART/pull/140"),
        report("PrimeIntellect-ai/prime-rl/pull/886"),
    ],
    examples=[
        yes(gives={"engine.generation_config": "vllm"}),
        yes(settings={"engine.generation_config": "auto"}, gives={}),
        no(purpose="eval"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """A request that leaves its sampling open to vLLM is sampled from what a trainer computes: softmax(logits)."""
    model = _with_defaults(lab)
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        got = await _sampled(lab.engine(worker))
    measure = "largest difference to log_softmax(logits), in a request that leaves its sampling open"
    return lab.close_logprobs(got, lab.rescored(lab.trainer(model), got), measure=measure)


def _with_defaults(lab: Lab) -> Path:
    """Returns a checkpoint with the sampling defaults of Qwen2.5-Instruct, and a stronger penalty."""
    target = lab.folder / "qwen3-with-defaults"
    shutil.copytree(lab.checkpoint("qwen3"), target, dirs_exist_ok=True)
    defaults = {"do_sample": True, "repetition_penalty": 1.3, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, **defaults}), encoding="utf-8")
    return target


async def _sampled(engine: Any) -> list[Generated]:
    """Samples as vLLM's `LLM.generate` does for a caller who gives no sampling parameters."""
    from vllm import SamplingParams

    from worker.lab.kit.lab import NEW_TOKENS, PROMPTS, Generated

    params = SamplingParams.from_optional(**engine.model_config.get_diff_sampling_param())
    params.max_tokens, params.ignore_eos, params.logprobs = NEW_TOKENS, True, 0
    rows = []
    for number, prompt in enumerate(PROMPTS):
        async for output in engine.generate({"prompt_token_ids": list(prompt)}, params, f"open-{number}"):
            completion = output.outputs[0]
        chosen = zip(completion.logprobs, completion.token_ids, strict=True)
        rows.append(Generated(tuple(completion.token_ids), tuple(entry[token].logprob for entry, token in chosen)))
    return rows
