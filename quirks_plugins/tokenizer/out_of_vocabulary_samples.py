"""Models with more rows than their tokenizer has tokens: vLLM samples ids that exist only as padding of the embedding.

What happens: a sample holds ids that decode to nothing. Encoding the sample's text again gives other ids, and a trainer learns
ids without a meaning. Versions of vLLM before vllm-project/vllm#22471 also refuse the next turn of the conversation ("Token id
151708 is out of vocabulary"). The embedding is padded to a round number of rows (Qwen2.5 and Qwen3: 151936 rows, the largest
known id is 151668), and vLLM samples from all of them (``vocab_size`` of ``config.json``). The extra ids start with low
probabilities, but a policy that moves, a high temperature or a confused context reaches them.

What this changes: ``tokenizer.only_known_ids`` becomes true in rollouts if there are at most 1024 such rows (the limit of
vLLM's newer model runner) and no speculative decoding (with it vLLM refuses a bias). The worker then biases their logits by
-100, the lowest bias that vLLM accepts, also in requests to its server. ``processed_logprobs`` are those of the distribution
without these rows. A trainer whose softmax includes these rows computes logprobs that are lower by -log(1 - p), where p is the
probability of the rows; in a trained model that is less than rounding. vLLM's older model runner rebuilds the biases of all
running requests in every step in which a request starts or ends. The older runner is used on the CPU platform, and for
features that the newer one lacks. Set ``tokenizer.only_known_ids: false`` if that costs more than samples with unknown ids do.

When it can go: when vLLM leaves out rows that the tokenizer does not know. So far it has relaxed the check of prompts instead
(vllm-project/vllm#22471).
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from quirks_core import Advise, Default, Fact, ModelFlag, Quirk, Severity, fix, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import our_worker

if TYPE_CHECKING:
    from pathlib import Path

    from worker.lab.kit.lab import Lab, Outcome

_ROWS = Fact("tokenizer.unknown_ids")
#: ``MAX_NUM_LOGIT_BIAS_TOKENS`` of vllm/v1/worker/gpu/sample/logit_bias.py.
_MOST = 1024
_OURS = {"engine.generate_from_dummy": False}
_DRAFT = {"engine.speculative_config": {"model": "draft", "num_speculative_tokens": 3}}
#: vLLM refuses a request with a bias then (``SamplingParams._validate_spec_decode``).
_speculates = setting("engine.speculative_config").is_set()

QUIRK = Quirk(
    id="out-of-vocabulary-samples",
    title="Rows that only pad the embedding are sampled: ids that the tokenizer does not know",
    flag=ModelFlag.TOKENIZER,
    match=purpose("rollout") & our_worker & _ROWS.above(0),
    adjustments=[
        Default("tokenizer.only_known_ids", True, when=_ROWS.below(_MOST + 1) & ~_speculates),
        Advise(
            f"the model has more than {_MOST} ids that the tokenizer does not know, more than a request can rule out; look for "
            "them in samples, or cut the embedding to the tokenizer's size",
            when=_ROWS.above(_MOST),
        ),
        Advise(
            "the model has ids that the tokenizer does not know, and with speculative decoding vLLM lets no request rule them "
            "out; look for them in samples",
            when=_ROWS.below(_MOST + 1) & _speculates,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/issues/13175"),
        report("https://github.com/NVIDIA-NeMo/RL/issues/237"),
        report("https://github.com/verl-project/verl/issues/1398"),
        report("https://github.com/vllm-project/vllm/pull/22471"),
        fix("https://github.com/facebookresearch/fairseq2/pull/1237"),
    ],
    examples=[
        yes("qwen3", _OURS, extra={"tokenizer.unknown_ids": _MOST}, gives={"tokenizer.only_known_ids": True}),
        yes("qwen3", {**_OURS, "tokenizer.only_known_ids": False}, extra={"tokenizer.unknown_ids": 267}, gives={}),
        yes("qwen3", _OURS, extra={"tokenizer.unknown_ids": _MOST + 1}, advises="more than 1024 ids"),
        yes("qwen3", {**_OURS, **_DRAFT}, extra={"tokenizer.unknown_ids": 267}, advises="speculative decoding"),
        no("qwen3", _OURS, extra={"tokenizer.unknown_ids": 0}),
        no("qwen3", _OURS, extra={"tokenizer.unknown_ids": 267}, purpose="eval"),
        no("qwen3", extra={"tokenizer.unknown_ids": 267}),
        unknown("qwen3", _OURS),
    ],
    cost="3.7 KB in each request for the 267 rows of Qwen3; with vLLM's older model runner 0.04 ms for each running request in "
    "steps where requests come or go (256 requests on one CPU core: 11 ms)",
)

#: Ids that the smaller tokenizer knows.
_KNOWN = 400


async def scenario(lab: Lab) -> Outcome:
    """Every sampled id is one that the tokenizer knows."""
    from worker.lab.kit.lab import Outcome

    values = {"engine": {"load_format": "auto"}, "sampling": {"max_new_tokens": 100}}
    async with lab.worker(_with_smaller_tokenizer(lab), values) as worker:
        got = await lab.sample(worker)
    tokens = [token for row in got for token in row.tokens]
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
