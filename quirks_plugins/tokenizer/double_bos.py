"""Text that a chat template rendered begins with BOS, and encoding it puts a second one in front.

What happens: samples from rendered text are worse than those of the same conversation sent as messages, and their logprobs
differ from the trainer's, whose prompts have one BOS. Nothing warns. The templates of Llama 3, Gemma, Mistral and others write
BOS (``{{ bos_token }}``), and their tokenizers add BOS to every text, too. transformers' ``apply_chat_template`` and vLLM's
chat endpoint therefore encode rendered text without special tokens. Our worker's `generate_text_async`, ``LLM.generate`` and
``/v1/completions``, however, encode a text prompt with special tokens (``TokenizeParams.add_special_tokens`` is true by
default).

What this changes: ``tokenizer.add_special_tokens`` becomes ``once`` for models whose tokenizer and chat template both add BOS,
as read from ``tokenizer.json`` and the template. A text that begins with BOS is then encoded without another BOS, and every
other text gets its BOS. A value that the user set stays. The quirk does not reach clients of other engines: these must send
token ids, or ``add_special_tokens: false``.

When it can go: not foreseeable; vLLM and transformers treat every text prompt as raw text that needs a BOS, on purpose.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from quirks_core import Default, Fact, ModelFlag, Quirk, Severity, fix, no, report, unknown, yes
from quirks_plugins.conditions import our_worker

if TYPE_CHECKING:
    from pathlib import Path

    from worker.lab.kit.lab import Lab, Outcome

_OURS = {"engine.generate_from_dummy": False}
_BOTH = {"tokenizer.adds_bos": True, "tokenizer.template_adds_bos": True}

QUIRK = Quirk(
    id="double-bos",
    title="Text that a chat template rendered begins with BOS already, and encoding it adds another",
    flag=ModelFlag.TOKENIZER,
    match=our_worker & Fact("tokenizer.adds_bos").is_true() & Fact("tokenizer.template_adds_bos").is_true(),
    adjustments=Default("tokenizer.add_special_tokens", "once"),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/issues/9519"),
        report("https://github.com/vllm-project/vllm/issues/2012"),
        fix("https://github.com/vllm-project/vllm/pull/55288"),
        fix("https://github.com/LiveCodeBench/LiveCodeBench/pull/146"),
    ],
    examples=[
        yes("llama", _OURS, extra=_BOTH, gives={"tokenizer.add_special_tokens": "once"}),
        yes("llama", {**_OURS, "tokenizer.add_special_tokens": "always"}, extra=_BOTH, gives={}),
        yes("llama", _OURS, extra=_BOTH, purpose="eval"),
        no("llama", _OURS, extra={**_BOTH, "tokenizer.template_adds_bos": False}),
        no("qwen3", _OURS, extra={**_BOTH, "tokenizer.adds_bos": False}),
        no("llama", extra=_BOTH),
        unknown("llama", _OURS),
    ],
)

_MESSAGES = [{"role": "user", "content": "tell me what a small model knows"}]


async def scenario(lab: Lab) -> Outcome:
    """Rendered text is generated from as the same conversation in token ids is."""
    from transformers import AutoTokenizer

    from worker.lab.kit.lab import Outcome, batch_of

    model = _that_adds_bos(lab)
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = tokenizer.apply_chat_template(_MESSAGES, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(_MESSAGES, add_generation_prompt=True, return_dict=False)
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        (_, by_ids), *_ = [item async for item in worker.generate_async(batch_of([ids]), greedy=True)]
        (_, by_text), *_ = [item async for item in worker.generate_text_async({"prompts": [text]}, greedy=True)]
    got = tokenizer.encode(by_text["texts"][0], add_special_tokens=False)
    expected = tokenizer.encode(
        tokenizer.decode(by_ids["output_ids"][0, len(ids) :], skip_special_tokens=True), add_special_tokens=False
    )
    measure = "ids of the text generated greedily from a rendered conversation"
    return Outcome(got == expected, measure, _short(got), _short(expected))


def _short(ids: list[int]) -> str:
    return " ".join(map(str, ids[:8]))


def _that_adds_bos(lab: Lab) -> Path:
    """Returns a checkpoint whose tokenizer puts BOS in front of every text, and whose chat template writes BOS."""
    target = lab.folder / "llama-with-bos"
    shutil.copytree(lab.checkpoint("llama"), target, dirs_exist_ok=True)
    template = target / "chat_template.jinja"
    if not (text := template.read_text(encoding="utf-8")).startswith("{{ bos_token }}"):
        template.write_text(f"{{{{ bos_token }}}}{text}", encoding="utf-8")
    file = target / "tokenizer.json"
    first, text_a, text_b = ({kind: {"id": name, "type_id": 0}} for kind, name in _PARTS)
    processor = {
        "type": "TemplateProcessing",
        "single": [first, text_a],
        "pair": [first, text_a, text_b],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
    }
    content = {**json.loads(file.read_text(encoding="utf-8")), "post_processor": processor}
    file.write_text(json.dumps(content), encoding="utf-8")
    return target


_PARTS = (("SpecialToken", "<bos>"), ("Sequence", "A"), ("Sequence", "B"))
