"""A text-only Gemma 3n runs without its per-layer embeddings.

What happens: a checkpoint of the language model alone (``Gemma3nForCausalLM``, ``model_type`` ``gemma3n_text``), as trainers
save it, generates other tokens than transformers, without an error: on a tiny model 8 of 72 agree. Every layer of Gemma 3n adds
an embedding of the token. Only vLLM's multimodal class computes these embeddings and passes them on
(``Gemma3nForConditionalGeneration.embed_input_ids``). ``Gemma3nForCausalLM.forward`` passes None, and the decoder goes on with
the projection alone ("Profiling run does not compute per_layer_inputs"). Released checkpoints name the multimodal class and
are not affected.

What this changes: ``Gemma3nForCausalLM.forward`` computes the embeddings from the token ids, into one buffer for all steps, as
CUDA graphs read the address that they captured. No setting of vLLM has this effect.

When it can go: when vLLM does so; the proposal is in ``docs/upstream/gemma3n-per-layer-embeddings.md``. We found no report of
it; the reference describes these embeddings. The method is the same in 0.16.0; the releases between that and 0.26.0 were not
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Affected, ModelFlag, Patch, Quirk, Severity, model_type, no, report, unknown, yes

if TYPE_CHECKING:
    from worker.lab.kit.lab import Lab, Outcome

QUIRK = Quirk(
    id="gemma3n-per-layer-embeddings",
    title="A text-only Gemma 3n runs without its per-layer embeddings, silently",
    flag=ModelFlag.MODEL_CONFIG,
    match=model_type("gemma3n_text"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.model_executor.models.gemma3n:Gemma3nForCausalLM.forward",
        wrapper="quirks_plugins.model_config.gemma3n_patches:wrap_forward",
        expects=("0a3354d99bc3",),
        reason="the model leaves out a part of its computation, and no setting adds it",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("https://github.com/openvinotoolkit/openvino.genai/pull/4075"),
    examples=[
        yes("gemma3n_text", vllm="0.32.0", patches="Gemma3nForCausalLM.forward"),
        yes("gemma3n_text", vllm="0.33.0", purpose="serve"),
        no("gemma3n", vllm="0.32.0"),
        unknown("gemma3n_text", vllm="0.25.1"),
        unknown("gemma3n_text"),
    ],
    cost="one copy of the embeddings per step, and memory for max_num_batched_tokens: 147 MB for 8192 tokens of Gemma 3n E4B",
)


async def scenario(lab: Lab) -> Outcome:
    """The engine generates what transformers does."""
    from worker.lab.kit.checkpoints import build

    model = build("gemma3n_text", lab.folder / "gemma3n")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
