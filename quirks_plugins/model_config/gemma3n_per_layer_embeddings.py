"""A text-only Gemma 3n runs without its per-layer embeddings.

What happens: a checkpoint of the language model alone (``Gemma3nForCausalLM``, ``model_type`` ``gemma3n_text``), as trainers
save it, generates other tokens than transformers, without an error: on a tiny model 8 of 72 agree. Every layer of Gemma 3n adds
an embedding of the token. Only vLLM's multimodal class computes these embeddings and passes them on
(``Gemma3nForConditionalGeneration.embed_input_ids``). ``Gemma3nForCausalLM.forward`` passes None, and the decoder goes on with
the projection alone ("Profiling run does not compute per_layer_inputs"). Released checkpoints name the multimodal class and
are not affected.

When it can go: when vLLM does so; the proposal is in ``docs/upstream/gemma3n-per-layer-embeddings.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, model_type, no, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    import torch

QUIRK = Quirk(
    id="gemma3n-per-layer-embeddings",
    title="A text-only Gemma 3n runs without its per-layer embeddings, silently",
    match=model_type("gemma3n_text"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.model_executor.models.gemma3n:Gemma3nForCausalLM.forward",
        wrapper="quirks_plugins.model_config.gemma3n_per_layer_embeddings:wrap_forward",
        expects=("0a3354d99bc3",),
        reason="the model leaves out a part of its computation, and no setting adds it",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("openvinotoolkit/openvino.genai/pull/4075"),
    examples=[
        yes("gemma3n_text", vllm="0.32.0", patches="Gemma3nForCausalLM.forward"),
        yes("gemma3n_text", vllm="0.33.0", purpose="serve"),
        no("gemma3n", vllm="0.32.0"),
        unknown("gemma3n_text"),
    ],
    cost="one copy of the embeddings per step, and memory for max_num_batched_tokens: 147 MB for 8192 tokens of Gemma 3n E4B",
)


#: The attribute of the model that holds the embeddings ``[max_num_batched_tokens, layers, size]`` of each step.
_BUFFER = "_per_layer_embeddings"


def wrap_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `Gemma3nForCausalLM.forward` that computes the per-layer embeddings of its token ids.

    Every step has them in the same memory, because CUDA graphs read where they were captured.
    """

    def embed_and_forward(
        self: Any, input_ids: torch.Tensor | None, positions: torch.Tensor, *, per_layer_inputs: Any = None, **kwargs: Any
    ) -> Any:
        if per_layer_inputs is None and input_ids is not None:
            embedded = self.model.self_decoder.get_per_layer_input_embeddings(input_ids)
            buffer = getattr(self, _BUFFER, None)
            if buffer is None:  # in the profiling run, before any capture
                buffer = _buffer_like(self, embedded)
                setattr(self, _BUFFER, buffer)
            per_layer_inputs = buffer[: input_ids.shape[0]]
            per_layer_inputs.copy_(embedded.view_as(per_layer_inputs))
        return forward(self, input_ids, positions, per_layer_inputs=per_layer_inputs, **kwargs)

    return embed_and_forward


def _buffer_like(model: Any, embedded: torch.Tensor) -> torch.Tensor:
    import torch

    config, tokens = model.config, model.model.vllm_config.scheduler_config.max_num_batched_tokens
    with torch.inference_mode(mode=False):  # a tensor like the model's own, which takes writes anywhere
        return embedded.new_zeros(tokens, config.num_hidden_layers, config.hidden_size_per_layer_input)


async def scenario(lab: Lab) -> Outcome:
    """The engine generates what transformers does."""
    from worker.lab.kit.checkpoints import build

    model = build("gemma3n_text", lab.folder / "gemma3n")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
