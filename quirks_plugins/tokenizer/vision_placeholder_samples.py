"""Models that take images, videos or sounds: vLLM samples the ids that stand for these in a prompt.

What happens: a policy that is unstable, or sampled at a high temperature, generates ids such as ``<|video_pad|>``. The trainer
takes them for images or videos when it computes logprobs of the sample, and fails in ``get_rope_index``, or gives the tokens
positions and embeddings of an image that is not there (modelscope/ms-swift#9287). vLLM samples from all rows of the
vocabulary; these ids are some of them.

When it can go: when vLLM or trainers leave out these ids.
"""

from functools import reduce
from operator import or_

from quirks_core import Affected, Fact, Quirk, Severity, described, no, purpose, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited
from quirks_plugins.tokenizer.out_of_vocabulary_samples import masked_logits
from quirks_plugins.tokenizer.token_patches import PLACEHOLDERS

_names_placeholders = described(
    reduce(
        or_, (Fact(f"model.{place}.{name}").is_set() for place in ("config", "config.thinker_config") for name in PLACEHOLDERS)
    ),
    "`config.json` names an id for images, videos or audio",
    "`config.json` names no id for images, videos or audio",
)
_QWEN = {"model_type": "qwen3_5", "image_token_id": 248056, "video_token_id": 248057}
#: The image id in a text model's ``config.json``; the ids are masked where the logits are computed, whatever the inputs are.
_IMAGE = 7

QUIRK = Quirk(
    id="vision-placeholder-samples",
    title="Ids that stand for images or videos in a prompt are sampled, and the trainer looks for the images",
    match=purpose("rollout") & _names_placeholders,
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=masked_logits("text"),
    severity=Severity.WRONG_OUTPUT,
    references=report("modelscope/ms-swift#9287"),
    examples=[
        yes(_QWEN, vllm="0.32.0", patches=["LogitsProcessor.__init__", "LogitsProcessor.forward"]),
        yes({"model_type": "gemma3", "image_token_index": 262144}, vllm="0.33.0"),
        yes({"model_type": "qwen3_omni_moe", "thinker_config": {"image_token_id": 151655}}, vllm="0.33.0"),
        no("qwen3", vllm="0.32.0"),
        no(_QWEN, vllm="0.32.0", purpose="serve"),
        unknown(_QWEN),
    ],
    cost="one write into a column of the logits per id and step",
)


async def scenario(lab: Lab) -> Outcome:
    """No sampled id is the one that stands for an image."""
    model = edited(lab, "qwen3", "with-images", {"image_token_id": _IMAGE})
    with lab.llm(model) as llm:
        rows = lab.tokens_of(llm, max_tokens=20, ignore_eos=True, logit_bias={_IMAGE: 100.0})
    tokens = [token for row in rows for token in row]
    wrong = tokens.count(_IMAGE)
    return Outcome(not wrong, f"of {len(tokens)} sampled ids, those that stand for an image", str(wrong), "0")
