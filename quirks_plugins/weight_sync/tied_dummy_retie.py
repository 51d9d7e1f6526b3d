"""A checkpoint whose head differs from its embeddings although its configuration ties them: dummy weights tie them again.

What happens: rollouts are garbage from the first refit on, or the policy's logprobs are far from the trainer's, with a
checkpoint whose ``config.json`` says ``tie_word_embeddings`` and which has an ``lm_head.weight`` of its own, as fine-tuning
tools leave behind. Transformers trusts the tensors and leaves the two apart. So does vLLM since 0.29.0, but after loading it
compares the two and ties them if they are equal (``maybe_retie_word_embeddings``). Dummy weights of one shape are equal,
always. A refit then sends head and embeddings into one tensor, and whichever comes last serves as both.

What this changes: head and embeddings that differ in the checkpoint stay apart; the two tensors are read from its files for
that. A redundant copy of the embeddings is tied as before, because trainers send it once. ``engine.load_format=auto`` helps as
well, and reads the whole checkpoint at every start.

When it can go: when vLLM does not compare dummy weights. Nobody has reported it, as far as we can see; the proposal is in
``docs/upstream/tied-dummy-retie.md``. vllm-project/vllm#51665 brought the comparison. It is in vLLM 0.29.0 to 0.33.0; before,
such a head was left out at any load.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from quirks_core import (
    Affected,
    Fact,
    ModelFlag,
    Patch,
    Quirk,
    Severity,
    SymbolProbe,
    no,
    purpose,
    report,
    unknown,
    yes,
)
from quirks_plugins.conditions import dummy_weights

if TYPE_CHECKING:
    from worker.testing.lab import Lab, Outcome

_TIES = "tie_word_embeddings"
# Most configurations leave the key out, and then their class decides: only a plain no is a no.
_untied = Fact(f"model.config.{_TIES}").one_of(False) & ~Fact(f"model.config.text_config.{_TIES}").is_true()
_DUMMY = {"engine.load_format": "dummy"}

QUIRK = Quirk(
    id="tied-dummy-retie",
    title="Dummy weights tie a head to embeddings that differ from it in the checkpoint, and refits write both into one tensor",
    flag=ModelFlag.WEIGHT_SYNC,
    match=purpose("rollout") & dummy_weights & ~_untied,
    affected=Affected("vllm", introduced="0.29.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.weight_tying:maybe_retie_word_embeddings",
        wrapper="quirks_plugins.weight_sync.tied_head_patches:wrap_retie",
        expects=("f600e5df8fd8",),
        reason="it compares dummy weights, which are equal wherever shapes are",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("https://github.com/vllm-project/vllm/pull/51665"),
    evidence=SymbolProbe(
        "vllm.model_executor.model_loader.weight_tying:maybe_retie_word_embeddings", present_means_affected=True
    ),
    examples=[
        yes({"model_type": "llama", _TIES: True}, _DUMMY, vllm="0.32.0"),
        yes("gemma3_text", _DUMMY, vllm="0.32.0"),
        no({"model_type": "llama", _TIES: False}, _DUMMY, vllm="0.32.0"),
        no({"model_type": "llama", _TIES: True}, {"engine.load_format": "auto"}, vllm="0.32.0"),
        no({"model_type": "llama", _TIES: True}, _DUMMY, vllm="0.28.0"),
        no({"model_type": "llama", _TIES: True}, _DUMMY, vllm="0.32.0", purpose="serve"),
        unknown({"model_type": "llama", _TIES: True}, _DUMMY),
    ],
    cost="at start, reads as much of head and embeddings as it takes to see whether they differ",
)


async def scenario(lab: Lab) -> Outcome:
    """An engine that started from dummy weights generates what the trainer does, which has a head of its own."""
    model = lab.folder / "llama-says-tied"
    shutil.copytree(lab.checkpoint("llama"), model, dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, _TIES: True}), encoding="utf-8")
    trainer = lab.trainer(model)
    async with lab.worker(model, {"engine": {"load_format": "dummy"}}) as worker:
        await worker.refit_async(trainer)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))
