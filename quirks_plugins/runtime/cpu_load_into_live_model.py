"""Trainers that load weights into a running model: on vLLM's CPU platform the first weight update fails.

What happens: the first weight update raises ``AttributeError`` at the first linear layer. A trainer that has vLLM in its own
process (TRL's colocate mode, online DPO) calls ``load_weights`` of the running model, once for each tensor. On GPUs that
overwrites the weights in place. vLLM's CPU platform packs the weight of each linear layer for its kernels, and replaces the
weight itself by an empty tensor without ``weight_loader`` (since 0.10.2, vllm-project/vllm#24150). Where oneDNN has no product
of the engine's dtype for the CPU (bfloat16 without AVX-512, float16 without AVX-512 FP16), vLLM packs nothing, and the update
works; Linux does not show whether an AVX2 CPU with AVX-VNNI has such products. A trainer must send all parts of a fused layer
(q, k and v; gate and up) before the next request; otherwise the request fails with the names of those layers, because the old
values are gone.

When it can go: when vLLM's CPU platform supports ``load_weights`` after the first load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, ModelFlag, Patch, Quirk, Severity, StaticProbe, no, platform, purpose, report, unknown, yes
from quirks_core.base.text import listed
from quirks_plugins.conditions import unpacked_on_cpu
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    import torch


QUIRK = Quirk(
    id="cpu-load-into-live-model",
    title="vLLM's CPU platform cannot take weights that a trainer loads into the running model",
    flag=ModelFlag.RUNTIME,  # a refit through vLLM's own reload does not need it
    match=platform("cpu") & purpose("rollout") & ~unpacked_on_cpu,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model",
        wrapper="quirks_plugins.runtime.cpu_load_into_live_model:wrap_load_model",
        expects=("5c00f43731f8", "b95fd04df01f", "ee1975c78da7", "939e4d07443b", "8579297b4f00", "39c27f400e70"),
        reason="vLLM packs linear weights for its CPU kernels and drops the tensors that load_weights writes to",
    ),
    severity=Severity.CRASH,
    crash=r"AttributeError: 'Parameter' object has no attribute 'weight_loader'",
    references=[report("vllm-project/vllm/pull/24150"), report("vllm-project/vllm#34201"), report("vllm-project/vllm#5723")],
    evidence=StaticProbe("vllm.model_executor.layers.utils", r"if remove_weight:\s+layer\.weight = torch\.nn\.Parameter\("),
    examples=[
        yes("qwen3", {"engine.dtype": "float32"}, vllm="0.32.0", platform="cpu", cpu="avx2"),
        yes("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx512"),
        yes("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx_vnni"),
        no("qwen3", {"engine.dtype": "float16"}, vllm="0.32.0", platform="cpu", cpu="avx512_bf16"),
        unknown("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu"),
        no("qwen3", vllm="0.32.0", platform="cuda"),
        no("qwen3", vllm="0.32.0", platform="cpu", purpose="serve"),
        no("qwen3", vllm="0.15.1", platform="cpu"),
    ],
    cost="nothing until a trainer calls load_weights; then one copy of each tensor, and the packing",
)


#: How many names a message shows.
_SHOWN = 4


def wrap_load_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make every model that a loader returns take new weights through vLLM's own layerwise reload."""

    @wraps(original)
    def load_model(self: Any, vllm_config: Any, model_config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        model = original(self, vllm_config, model_config, *args, **kwargs)
        if hasattr(model, "load_weights"):
            model.load_weights = _LiveLoad(model, model_config).load_weights
        return model

    return load_model


class _LiveLoad:
    """One running model, and the reload that is open in it.

    A trainer calls ``load_weights`` once for each tensor and never marks the last one. So the first call opens a layerwise
    reload, and the next forward pass closes it, or a tensor that comes again after its layer was complete: by that the next
    update begins. In between, a layer takes effect as soon as it has all its weights.
    """

    def __init__(self, model: Any, model_config: Any) -> None:
        self._model = model
        self._config = model_config
        self._load = model.load_weights
        self._hook: Any = None
        self._came: set[str] = set()
        self._next: tuple[str, torch.Tensor] | None = None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
        """Takes new weights as the model's own method does.

        Args:
            weights: Tensors in the checkpoint's layout, with the checkpoint's names. They are copied: a fused layer keeps its
                parts until it has all of them, and a trainer may reuse the memory after the call.
            *args: Further arguments of the model's own method.
            **kwargs: The same, by name.

        Returns:
            What the model's own method returns.
        """
        if self._hook is None and any(self._loadable()):  # by a caller that also closes it: `reload_weights`, a weight transfer
            return self._load(weights, *args, **kwargs)
        coming, loaded = iter(weights), set[str]()
        self._next = next(coming, None)
        while self._next is not None:
            coming = chain([self._next], coming)
            self._begin(self._next[0])
            self._next = None
            loaded |= self._load(self._copies(coming), *args, **kwargs) or set()
        return loaded

    def _begin(self, name: str) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if self._is_again(name):
            if all(self._loadable()):  # somebody else has opened a reload since then
                self._came.clear()
            else:
                self._close()
        if self._hook is None:
            initialize_layerwise_reload(self._model)
            self._hook = self._model.register_forward_pre_hook(lambda *_: self._close())

    def _copies(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields copies up to the next update's first tensor: a model looks up its parameters once in each call."""
        for name, weight in weights:
            if self._is_again(name):
                self._next = name, weight
                return
            self._came.add(name)
            yield name, weight.detach().clone()

    def _is_again(self, name: str) -> bool:
        return name in self._came and not any(self._partly_loaded())

    def _loadable(self) -> Iterator[bool]:
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        return (get_layerwise_info(layer).can_load() for layer in self._model.modules())

    def _close(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if partly := list(self._partly_loaded()):
            raise RuntimeError(
                f"load_weights: {listed(partly, _SHOWN)} got only a part of their weights, and vLLM's CPU platform does not "
                "keep the old values of the rest; send all weights of a layer (those of q, k and v, of gate and up) before the "
                "next request"
            )
        self._hook.remove()
        self._hook = None
        self._came.clear()
        finalize_layerwise_reload(self._model, self._config)

    def _partly_loaded(self) -> Iterator[str]:
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        for name, layer in self._model.named_modules():
            info = get_layerwise_info(layer)
            is_partly = info.can_load() and 0 < info.load_numel < info.load_numel_total
            if is_partly and not isinstance(layer, VocabParallelEmbedding):  # its padding never arrives
                yield name


async def scenario(lab: Lab) -> Outcome:
    """An engine that got the weights of two trainers, one after the other, generates what the second one does.

    What TRL does, in plain vLLM: ``LLM(...)`` in this process, and one call of the running model's ``load_weights`` per tensor.
    """
    model = lab.checkpoint("qwen3")
    trainers = [lab.trainer(lab.checkpoint("qwen3", seed=seed)) for seed in (1, 2)]
    expected = lab.reference(trainers[-1])
    with lab.llm(model) as llm:
        running = llm.llm_engine.model_executor.driver_worker.model_runner.model
        for trainer in trainers:
            for name, weight in trainer.named_parameters():
                running.load_weights([(name, weight.data)])
            llm.reset_prefix_cache()
            got = lab.greedy_of(llm)
    return lab.same_tokens(got, expected)
