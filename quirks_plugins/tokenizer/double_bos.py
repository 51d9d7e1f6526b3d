"""Text that a chat template rendered begins with BOS, and encoding it puts a second one in front.

What happens: samples from rendered text are worse than those of the same conversation sent as messages, and their logprobs
differ from the trainer's, whose prompts have one BOS. The templates of Llama 3, Gemma, Mistral and others write BOS (``{{
bos_token }}``), and their tokenizers add BOS to every text, too. transformers' ``apply_chat_template`` and vLLM's chat endpoint
therefore encode rendered text without special tokens; ``LLM.generate`` and ``/v1/completions`` do not
(``TokenizeParams.add_special_tokens``). Token ids are left alone, so a client that needs two BOS sends ids.

When it can go: not foreseeable; vLLM and transformers treat every text prompt as raw text that needs a BOS, on purpose.
"""

import json
import shutil
from pathlib import Path

from quirks_core import Affected, Fact, Patch, Quirk, Severity, fix, no, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

_BOTH = {"tokenizer.adds_bos": True, "tokenizer.template_adds_bos": True}

QUIRK = Quirk(
    id="double-bos",
    title="Text that a chat template rendered begins with BOS already, and encoding it adds another",
    match=Fact("tokenizer.adds_bos").is_true() & Fact("tokenizer.template_adds_bos").is_true(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.renderers.base:BaseRenderer._tokenize_prompt",
        wrapper="quirks_plugins.tokenizer.token_patches:wrap_tokenize",
        expects=("937ced37db14", "2773e7d48007"),
        reason="a text that begins with BOS gets another one there",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#9519"),
        report("vllm-project/vllm#2012"),
        fix("vllm-project/vllm/pull/55288"),
        fix("LiveCodeBench/LiveCodeBench/pull/146"),
    ],
    examples=[
        yes("llama", vllm="0.32.0", extra=_BOTH, patches="BaseRenderer._tokenize_prompt"),
        yes("llama", vllm="0.33.0", extra=_BOTH, purpose="serve"),
        no("llama", vllm="0.32.0", extra={**_BOTH, "tokenizer.template_adds_bos": False}),
        no("qwen3", vllm="0.32.0", extra={**_BOTH, "tokenizer.adds_bos": False}),
        unknown("llama", vllm="0.32.0"),
    ],
    cost="one comparison for each text prompt",
)

_MESSAGES = [{"role": "user", "content": "tell me what a small model knows"}]


async def scenario(lab: Lab) -> Outcome:
    """A rendered conversation has the prompt that the same conversation has in token ids."""
    from transformers import AutoTokenizer

    model = _that_adds_bos(lab)
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = tokenizer.apply_chat_template(_MESSAGES, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(_MESSAGES, add_generation_prompt=True, return_dict=False)
    with lab.llm(model) as llm:
        got = llm.generate([text], use_tqdm=False)[0].prompt_token_ids
    return Outcome(got == ids, "token ids of a rendered conversation", _short(got), _short(ids))


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
