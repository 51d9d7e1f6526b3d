"""Mistral's tokenizers with the pattern of GPT-4: longer numbers and some words have ids that the model was not trained with.

What happens: prompts are a little worse, in an engine and in a trainer's labels, and decoding hides it ("2023" becomes "202"
and "3" in place of four digits). Files that transformers' script made of ``tekken.json`` until November 2025 split text by that
script's default, Mistral-Small-3.1's among them, and copies of fine-tuned models keep them. transformers warns from 4.57.2 on,
also of models that have nothing of Mistral (huggingface/transformers#42591), so that it is overlooked; it corrects nothing.

When it can go: never, as the files stay; a file with Mistral's own pattern is not concerned.

Evidence: with transformers 5.19.0 a local folder with ``fix_mistral_regex`` in ``tokenizer_config.json`` splits as Mistral
does, unless its ``config.json`` was written by transformers 5. An engine with vLLM's tokenizer of Mistral is not concerned.
"""

from quirks_core import Advise, Fact, Quirk, Severity, model_type, no, report, setting, unknown, yes

#: The default of ``MistralConverter`` in transformers' ``convert_slow_tokenizer.py``.
_GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_FILES = {"tokenizer.split_patterns": [_GPT4]}

QUIRK = Quirk(
    id="mistral-regex",
    title="Tokenizers of Mistral models that were converted with the pattern of GPT-4 split numbers and words wrongly",
    match=model_type("mistral", "mistral3", "ministral", "pixtral", "voxtral")
    & Fact("tokenizer.split_patterns").any_in(_GPT4)
    & ~setting("engine.tokenizer_mode").one_of("mistral")
    & ~setting("engine.skip_tokenizer_init").is_true(),
    adjustments=Advise(
        "tokenizer.json of this Mistral model splits text by the pattern of GPT-4, so that numbers and some words have other "
        'ids than in its training: in a local copy write "fix_mistral_regex": true into tokenizer_config.json, for the '
        'trainer, too, and take "transformers_version" out of config.json if it begins with 5'
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("huggingface/transformers/pull/42131"),
        report("huggingface/transformers/pull/42299"),
        report("huggingface/transformers#42591"),
    ],
    examples=[
        yes("mistral3", extra=_FILES, advises="fix_mistral_regex"),
        yes("mistral", extra=_FILES, purpose="serve"),
        no("mistral", extra={"tokenizer.split_patterns": [r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]+"]}),
        no("mistral3", {"engine.tokenizer_mode": "mistral"}, extra=_FILES),
        no("mistral3", {"engine.skip_tokenizer_init": True}, extra=_FILES),
        unknown("mistral3"),
    ],
)
