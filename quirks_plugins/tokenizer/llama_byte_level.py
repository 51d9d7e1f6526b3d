"""A byte-level ``tokenizer.json`` under the class ``LlamaTokenizer``: transformers 5 loses the spaces of every text.

What happens: "the capital of France is Paris" becomes "thecapitalofFranceisParis", in prompts and in answers, and nothing
fails. R1-Distill-Llama, deepseek-coder and others name that class, and transformers 5 then puts SentencePiece's way of
splitting text in the place of the file's. It makes exceptions by model type and, since 5.13, by hub id, which a local folder
does not have. From 5.22.0 on it looks into ``tokenizer.json``. Seen with 5.19.0 and 5.21.0, and right with 5.24.0, for nine
model types: `llama`, `qwen3_moe` and `gemma2` are concerned, while `deepseek_v2`, `deepseek_v3`, `mistral`, `olmo3`, `phi3` and
`qwen2` are exceptions.

When it can go: when transformers 5.21 is no longer in use. An engine that gets and returns token ids alone is not concerned.
"""

import json
import shutil

from quirks_core import Affected, Quirk, Refuse, Severity, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_name, model_type, package, setting
from quirks_plugins.kit import Lab, Outcome

_FILES = {"tokenizer.class": "LlamaTokenizerFast", "tokenizer.is_byte_level": True}
_OLD = {"transformers": "5.19.0"}
#: These go by the class of the file since 5.12; 5.0 did not.
_qwen3 = model_type("qwen3", "qwen3_moe") & package("transformers", introduced="5.12.0")
_excepted = model_name("^deepseek-ai/deepseek-(r1-distill-llama|coder)-") & package("transformers", introduced="5.13.0")

QUIRK = Quirk(
    id="llama-byte-level",
    title="transformers 5 takes a byte-level tokenizer for SentencePiece's, and all texts lose their spaces",
    match=(model_type("llama") | _qwen3)
    & Fact("tokenizer.class").matches("^LlamaTokenizer(Fast)?$")
    & Fact("tokenizer.is_byte_level").is_true()
    & ~setting("engine.skip_tokenizer_init").is_true()
    & ~_excepted,
    affected=Affected("transformers", introduced="5.0.0", fixed="5.22.0"),
    adjustments=Refuse(
        "tokenizer_config.json names LlamaTokenizer, tokenizer.json is byte-level, and this transformers follows the name: "
        "texts lose their spaces",
        'write "tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json, for the trainer, too, or install '
        "transformers 5.22 or newer; with engine.skip_tokenizer_init: true token ids alone go in and out",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("huggingface/transformers#45488"),
        report("huggingface/transformers/pull/47017"),
        report("huggingface/transformers/pull/48317"),
    ],
    examples=[
        yes("llama", packages=_OLD, extra=_FILES, refuses="PreTrainedTokenizerFast"),
        yes("qwen3", packages=_OLD, extra={**_FILES, "tokenizer.class": "LlamaTokenizer"}, purpose="serve"),
        no("llama", packages={"transformers": "5.22.0"}, extra=_FILES),
        no("llama", packages={"transformers": "4.57.6"}, extra=_FILES),
        no("llama", packages=_OLD, extra={**_FILES, "tokenizer.is_byte_level": False}),
        no("llama", packages=_OLD, extra={**_FILES, "tokenizer.class": "PreTrainedTokenizerFast"}),
        no("llama", {"engine.skip_tokenizer_init": True}, packages=_OLD, extra=_FILES),
        no("llama", packages=_OLD, extra=_FILES, name="deepseek-ai/DeepSeek-R1-Distill-Llama-8B"),
        unknown("llama", packages=_OLD),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The run of a byte-level tokenizer that is called LlamaTokenizer is refused, or a text survives the tokenizer."""
    from transformers import AutoTokenizer

    source = lab.checkpoint("llama")
    model = source.with_name(f"{source.name}-named")
    shutil.copytree(source, model, dirs_exist_ok=True)
    file = model / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**settings, "tokenizer_class": "LlamaTokenizerFast"}), encoding="utf-8")
    text, expected = "the capital of France is Paris", "refused, or the same text"
    if refusals := lab.plan(model, {"purpose": "eval"}).refusals:
        return Outcome(True, "a text, encoded and decoded", f"refused: {refusals[0].reason}", expected)
    tokenizer = AutoTokenizer.from_pretrained(model)
    got = tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)
    return Outcome(got == text, "a text, encoded and decoded", got, expected)
