"""An engine without a tokenizer whose ``generation_config.json`` names no EOS: nothing ends a sample.

What happens: every sample runs to ``max_new_tokens``. The text after the first EOS is noise, the trainer learns from it, and
every step takes as long as a sample of maximum length. With ``skip_tokenizer_init`` vLLM has no tokenizer to read EOS from
(``BaseRenderer.get_eos_token_id`` returns None), so it reads only ``eos_token_id`` of ``generation_config.json``
(``SamplingParams.update_from_generation_config``). Trainers rewrite that file, and a file with sampling values alone names
no EOS. vLLM makes one from ``config.json``, with its EOS, only if there is no such file.

When it can go: when vLLM uses the EOS of ``config.json`` also for a file that names no EOS.
"""

import json
from pathlib import Path
from typing import Any

from quirks_core import Affected, Fact, Patch, Quirk, Severity, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited

_EOS = ("model.config.eos_token_id", "model.text_config.eos_token_id")
_without_tokenizer = setting("engine.skip_tokenizer_init").is_true()
_SKIPPED = {"engine.skip_tokenizer_init": True}
_QWEN3 = {"model_type": "qwen3", "eos_token_id": 151645}
_NONE: dict[str, Any] = {"model.stop_token_ids": []}

QUIRK = Quirk(
    id="eos-without-tokenizer",
    title="Without a tokenizer, and without an EOS in generation_config.json, no sample ever ends",
    match=_without_tokenizer & (Fact(_EOS[0]).is_set() | Fact(_EOS[1]).is_set()) & ~Fact("model.stop_token_ids").is_not_empty(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.config.model:ModelConfig.try_get_generation_config",
        wrapper="quirks_plugins.tokenizer.token_patches:wrap_generation_config",
        expects=("acff98d468ae", "a16b21dd0d46", "bea4b19e3cd0"),
        reason="without a tokenizer, vLLM knows the EOS from there alone",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/3748"),
    examples=[
        yes(_QWEN3, _SKIPPED, vllm="0.32.0", extra=_NONE, patches="ModelConfig.try_get_generation_config"),
        yes({"model_type": "gemma3", "text_config": {"eos_token_id": [1, 106]}}, _SKIPPED, vllm="0.33.0", extra=_NONE),
        yes(_QWEN3, _SKIPPED, vllm="0.32.0", extra=_NONE, purpose="serve"),
        no(_QWEN3, vllm="0.32.0", extra=_NONE),
        no(_QWEN3, _SKIPPED, vllm="0.32.0", extra={"model.stop_token_ids": [151645]}),
        no("qwen3", _SKIPPED, vllm="0.32.0", extra=_NONE),
        unknown(_QWEN3, _SKIPPED, vllm="0.32.0"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """A sample ends at the EOS of ``config.json``."""
    expected = lab.reference(lab.checkpoint("qwen3"))[0].tokens
    eos = expected[_LENGTH - 1]
    first = expected.index(eos) + 1  # where greedy decoding comes to it
    with lab.llm(_without_eos(lab, eos), skip_tokenizer_init=True) as llm:
        length = len(lab.tokens_of(llm, temperature=0, max_tokens=32)[0])
    return Outcome(length == first, "tokens of a sample, up to its EOS", str(length), str(first))


_LENGTH = 6


def _without_eos(lab: Lab, eos: int) -> Path:
    """Returns a checkpoint whose ``config.json`` alone names an EOS; the sampling values are those of Qwen3."""
    target = edited(lab, "qwen3", "without-eos", {"eos_token_id": eos})
    values = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    (target / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    return target
