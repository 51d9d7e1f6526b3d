"""``GPT2Tokenizer`` in ``tokenizer_config.json``, and other steps in ``tokenizer.json``: transformers 5 splits text as GPT-2.

What happens: ids differ from those that the model was trained with, mostly in numbers ("2023" of Granite 4 and OLMo-2 becomes
[508, 1419] in place of [2366, 18]), in prompts and in a trainer's labels; decoding hides it, and nothing fails. The class puts
GPT-2's pattern in the place of the file's steps, so that ``Split`` and ``Digits`` are lost. transformers 4 followed the file.

When it can go: when transformers follows the file. Granite's types are exceptions from 5.9.0 on, OLMo-2's and HyperCLOVA X's
from 5.13.0 on; the others still follow the class in 5.24.0.

Evidence: local folders of 26 model types, with a file that splits digits, were loaded with 5.0.0 to 5.7.0, 5.9.0, 5.12.0,
5.13.0, 5.19.0 and 5.24.0. An engine that gets and returns token ids alone is not concerned.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, model_type, no, package, report, setting, unknown, yes

_FILES = {"tokenizer.class": "GPT2Tokenizer", "tokenizer.pre_tokenizers": ["Digits", "ByteLevel"]}
_SPLIT = {"tokenizer.class": "GPT2TokenizerFast", "tokenizer.pre_tokenizers": ["Split", "ByteLevel"]}
_granite = model_type("granite", "granitemoe", "granitemoehybrid", "granitemoeshared") & package("transformers", fixed="5.9.0")
_excepted = model_type("hyperclovax", "olmo2", "smolvlm", "stablelm") & package(
    "transformers", introduced="5.6.0", fixed="5.13.0"
)
_others = model_type(
    *("exaone4", "falcon_h1", "gpt_neox", "idefics3", "llama", "mamba2", "olmo", "qwen3", "qwen3_moe", "smollm3", "starcoder2")
) & package("transformers", introduced="5.6.0")

QUIRK = Quirk(
    id="gpt2-pre-tokenizer",
    title="transformers 5 splits text as GPT-2 does where tokenizer.json splits it otherwise, and ids are wrong",
    match=(_granite | _excepted | _others)
    & Fact("tokenizer.class").matches("^GPT2Tokenizer(Fast)?$")
    & Fact("tokenizer.pre_tokenizers").any_in("Digits", "Split")
    & ~setting("engine.skip_tokenizer_init").is_true(),
    affected=Affected("transformers", introduced="5.0.0"),
    adjustments=Advise(
        "tokenizer_config.json names GPT2Tokenizer, so that this transformers splits text as GPT-2 does and drops the steps of "
        "tokenizer.json: ids of numbers are wrong. For trainer and engine, write there "
        '"tokenizer_class": "PreTrainedTokenizerFast"'
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("huggingface/transformers#45812"),
        report("huggingface/transformers#45920"),
        report("huggingface/transformers/pull/45813"),
        report("generative-computing/mellea#947"),
    ],
    examples=[
        yes("granitemoehybrid", packages={"transformers": "5.7.0"}, extra=_SPLIT, advises="PreTrainedTokenizerFast"),
        yes("olmo2", packages={"transformers": "5.8.0"}, extra=_SPLIT),
        yes("llama", packages={"transformers": "5.24.0"}, extra=_FILES, purpose="serve"),
        no("granitemoehybrid", packages={"transformers": "5.9.0"}, extra=_SPLIT),
        no("olmo2", packages={"transformers": "5.13.0"}, extra=_SPLIT),
        no("llama", packages={"transformers": "5.24.0"}, extra={**_FILES, "tokenizer.class": "PreTrainedTokenizerFast"}),
        no("llama", packages={"transformers": "5.24.0"}, extra={**_FILES, "tokenizer.pre_tokenizers": ["ByteLevel"]}),
        no("llama", {"engine.skip_tokenizer_init": True}, packages={"transformers": "5.24.0"}, extra=_FILES),
        unknown("llama", extra=_FILES),
    ],
)
