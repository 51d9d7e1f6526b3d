"""Models with more rows than their tokenizer has tokens: vLLM samples ids that exist only as padding of the embedding.

What happens: a sample holds ids that decode to nothing. Encoding the sample's text again gives other ids, and a trainer learns
ids without a meaning. The embedding is padded to a round number of rows (Qwen2.5 and Qwen3: 151936 rows, the largest known id
is 151668), and vLLM samples from all of them (``vocab_size`` of ``config.json``). The extra ids start with low probabilities,
but a policy that moves, a high temperature or a confused context reaches them. A trainer whose softmax includes these rows
computes logprobs that are lower by -log(1 - p), where p is the probability of the rows; in a trained model that is less than
rounding. Ranks that sample from their parts of the vocabulary are not reached (``skip_gather``, vLLM 0.29 and later).

When it can go: when vLLM leaves out rows that the tokenizer does not know. So far it has relaxed the check of prompts instead
(vllm-project/vllm#22471).
"""

import json
import shutil
from pathlib import Path

from quirks_core import Affected, Fact, Patch, Quirk, Severity, fix, no, purpose, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome

_PADDED = {"tokenizer.unknown_ids": 267}
_LAYER = "vllm.model_executor.layers.logits_processor:LogitsProcessor"
_PATCHES = "quirks_plugins.tokenizer.token_patches"


def masked_logits(ids: str) -> list[Patch]:
    """The patches that keep ids from being sampled, by the end of their wrappers' names; several quirks have them."""
    return [
        Patch(
            f"{_LAYER}.__init__",
            wrapper=f"{_PATCHES}:wrap_init_{ids}",
            expects=("880f44f89d20", "e4ba1de0d98b", "19ac105301be"),
            reason="the ids are found out once, while the model is made",
        ),
        Patch(
            f"{_LAYER}.forward",
            wrapper=f"{_PATCHES}:wrap_forward_{ids}",
            expects=("13876da3278f", "69f7caae58a8"),
            reason="no argument of vLLM rules out ids for all requests",
        ),
    ]


QUIRK = Quirk(
    id="out-of-vocabulary-samples",
    title="Rows that only pad the embedding are sampled: ids that the tokenizer does not know",
    match=purpose("rollout") & Fact("tokenizer.unknown_ids").above(0) & ~setting("engine.skip_tokenizer_init").is_true(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=masked_logits("known"),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#13175"),
        report("NVIDIA-NeMo/RL#237"),
        report("verl-project/verl#1398"),
        report("vllm-project/vllm/pull/22471"),
        fix("facebookresearch/fairseq2/pull/1237"),
    ],
    examples=[
        yes("qwen3", vllm="0.32.0", extra=_PADDED, patches=["LogitsProcessor.__init__", "LogitsProcessor.forward"]),
        no("qwen3", vllm="0.32.0", extra={"tokenizer.unknown_ids": 0}),
        no("qwen3", {"engine.skip_tokenizer_init": True}, vllm="0.32.0", extra=_PADDED),
        no("qwen3", vllm="0.32.0", extra=_PADDED, purpose="eval"),
        unknown("qwen3", vllm="0.32.0"),
    ],
    cost="one write into a slice of the logits per step",
)

#: Ids that the smaller tokenizer knows.
_KNOWN = 400


async def scenario(lab: Lab) -> Outcome:
    """Every sampled id is one that the tokenizer knows."""
    model = _with_smaller_tokenizer(lab)
    with lab.llm(model) as llm:
        tokens = [token for row in lab.tokens_of(llm, max_tokens=100, ignore_eos=True) for token in row]
    wrong = sum(token >= _KNOWN for token in tokens)
    return Outcome(not wrong, f"of {len(tokens)} sampled ids, those that the tokenizer does not know", str(wrong), "0")


def _with_smaller_tokenizer(lab: Lab) -> Path:
    """Returns a checkpoint with 512 rows whose tokenizer knows 400 ids: the merges of the others are left out."""
    target = lab.folder / "qwen3-padded"
    shutil.copytree(lab.checkpoint("qwen3"), target, dirs_exist_ok=True)
    file = target / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    model = tokenizer["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < _KNOWN}
    pairs = [(pair, "".join(pair.split(" ") if isinstance(pair, str) else pair)) for pair in model["merges"]]
    model["merges"] = [pair for pair, joined in pairs if joined in model["vocab"]]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    return target
