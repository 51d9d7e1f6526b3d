"""One update of a running model: what a plan copies, and vLLM's layerwise reload for the rest; and the model's very first load.

Imports vLLM for that reload.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import nn
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload, layerwise
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer

from quirks_core.base.errors import words
from quirks_core.base.text import listed
from worker.errors import RefitUnsupportedError
from worker.refit.engine.recording import Recording
from worker.refit.engine.verify import unwrapped
from worker.refit.weights.copy_plan import CopyPlan, Tensors, passing, slots
from worker.refit.weights.manifest import Manifest

#: Tensors that are there together: those that a plan was recorded from, and others.
Batch: TypeAlias = tuple[Sequence[tuple[str, torch.Tensor]], Tensors]
#: A model's ``load_weights``, or one of vLLM's functions around it.
Load: TypeAlias = Callable[..., Any]
#: The module that holds a MoE layer's experts.
_EXPERTS = "routed_experts"


class Reload:
    """One update of a model: vLLM resets layers to their state before loading, and processes each with its new weights.

    What a plan copies is copied at once, and layers are reset when the first other tensor comes.

    Attributes:
        plan: What is copied; None if everything is loaded.
        slots: Names of all parameters and buffers that the model had before, including those that are None; empty as long as
            no layer was reset.
        sent: Name, dtype and shape of the tensors that were loaded, in order.
        touched: Whether the model may hold other tensors or values than before.
    """

    def __init__(
        self,
        model: nn.Module,
        model_config: Any,
        layers: Callable[[str], bool] | None = None,
        *,
        plan: CopyPlan | None = None,
        is_recorded: bool = False,
        lasts: bool = True,
    ) -> None:
        """Begins; writes the plan's constants.

        Args:
            model: The engine's model.
            model_config: vLLM's configuration of it.
            layers: Picks by name those that are made ready, beside attention, which vLLM processes last in any case.
            plan: What can be copied.
            is_recorded: Find out what can be copied the next time.
            lasts: What comes has memory of its own. If not, or if most of that memory is copied, loaders get clones.
        """
        self.plan = plan
        self._model = model
        self._part: Any = model if layers is None else SimpleNamespace(modules=partial(_picked, model, layers))
        self._config = model_config
        self._is_recorded = is_recorded
        self._clones = plan is not None or not lasts
        self._recording: Recording | None = None
        self._thread = threading.get_ident()
        self._wanted: frozenset[str] = frozenset()
        self._loaded: set[str] | None = set()
        self.slots: Collection[str] = ()
        self.sent: list[tuple[str, torch.dtype, torch.Size]] = []
        self.touched = False
        if plan is not None:
            plan.begin()

    def open(self) -> None:
        """Makes the layers ready to be loaded.

        Raises:
            RefitUnsupportedError: vLLM cannot reload this model; what it had changed was undone.
        """
        before, was_touched = _identities(self._model), self.touched
        self.slots = before.keys()
        self._first = first_names(self._model)
        self._recording = Recording(self._model) if self._is_recorded else None
        self.touched = True
        try:
            initialize_layerwise_reload(self._part)
        except Exception as error:
            self.abandon()
            self.touched = was_touched or before != _identities(self._model)
            raise RefitUnsupportedError(f"refit: vLLM cannot reload this model: {words(error)}") from error
        if self._recording is not None:
            self._recording.opened()
        # Parameters that processing added are gone until the reload is closed. What the engine computes from loaded weights
        # (MLA's W_UK_T and W_UV) is not among them: no trainer has it, and the reload computes it again.
        self._wanted = frozenset(set(self._first.values()) & {name for name, _ in self._model.named_parameters()})

    def load(self, load: Load, coming: Iterable[Batch]) -> Any:
        """Takes some tensors, in one of any number of calls; returns what `load`, the model's ``load_weights``, does.

        A recording ends with a call that fails, or that another thread makes: it sees one.

        Args:
            load: Takes what is not copied.
            coming: The tensors, batch by batch.
        """
        rest = self._rest(coming)
        first = list(islice(rest, 1))
        if self.plan is not None and not first:
            return set()
        if not self.slots:
            self.open()
        recording, self._recording = self._recording, None
        if threading.get_ident() != self._thread:
            recording = None
        with recording.loading() if recording is not None else nullcontext():
            tensors = passing(chain(first, rest), self._note)
            found = load(tensors if recording is None else passing(tensors, recording.see))
        if recording is not None and torch.accelerator.is_available():
            torch.accelerator.synchronize()  # the next tensors may come on another stream
        self._recording = recording
        self._loaded = None if found is None or self._loaded is None else self._loaded | set(found)
        return found

    @property
    def last(self) -> str:
        """The tensor that was loaded last, in words."""
        if not self.sent:
            return "the first tensor"
        (spec,) = Manifest.decode(self.sent[-1:]).tensors
        return f"{spec.name}, {spec}"

    def unloaded(self) -> list[str]:
        """Returns the parameters that a checkpoint fills and that got no value; none if the model does not report them."""
        return [] if self._loaded is None else sorted(self._wanted - own_names(self._loaded, self._wanted, self._first))

    def close(self, finalize: Callable[[], None] | None = None) -> None:
        """Processes the remaining layers and puts the weights in force; abandons the update if that fails.

        Args:
            finalize: Does so; vLLM's own function if None.
        """
        is_prepared = self.plan is not None and bool(self.plan.prepared.sources)
        try:
            if is_prepared and not self.slots:
                self.open()  # attention: what it computes of other layers it computes last
            with self._recording.loading() if self._recording is not None else nullcontext():
                if finalize is not None:
                    finalize()
                elif self.slots:
                    # Of the whole model, for some quirks look at all of its layers then.
                    finalize_layerwise_reload(self._model if is_prepared else self._part, self._config)
        except BaseException:
            self.abandon()
            raise
        if self.plan is not None:
            self.plan.uses += 1

    def recorded(self, manifest: Manifest, *, prepares: bool = False) -> CopyPlan | None:
        """Returns what can be copied from now on, after `close`, of what a manifest describes; None if nothing was recorded.

        Args:
            manifest: What came.
            prepares: Layers that are processed after loading are filled by copies, too, where their loaders do nothing else.
        """
        if self._recording is None:
            return None
        return self._recording.plan(manifest, self.unloaded(), LayerReload if prepares else None)

    def abandon(self) -> None:
        """Gives every layer that is not complete its tensors of before back, so that another update can start."""
        if self.plan is not None:
            self.plan.prepared.abandon()
        elif not self.slots:
            return
        _abandon(self._part, self._config)

    def check(self, wanted: Collection[str]) -> None:
        """Checks, after `close`, that the model still has every tensor that it computes with, `wanted` by name.

        Raises:
            RefitUnsupportedError: It does not, so the next forward pass would fail.
        """
        after = dict(slots(self._model))
        problems = {
            "removes": sorted(name for name in wanted if name not in after),
            "leaves without memory": [name for name, held in after.items() if held is not None and held.is_meta],
        }
        if found := [f"{verb} {listed(names)}" for verb, names in problems.items() if names]:
            raise RefitUnsupportedError(f"refit: vLLM's reload of this model {' and '.join(found)}")

    def _rest(self, coming: Iterable[Batch]) -> Iterator[tuple[str, torch.Tensor]]:
        for known, others in coming:
            rest = others
            if self.plan is not None:
                self.touched = True
                rest = chain(self.plan.take(self._model, known), others)
            for name, tensor in rest:
                yield name, tensor.clone() if self._clones else tensor

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        self.sent.append((name, tensor.dtype, tensor.shape))


class LayerReload:
    """One layer's reload by itself: its tensors have memory at once, and its loaders write into that."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        self._name = name
        self._layer = layer
        self._root = SimpleNamespace(modules=lambda: [layer])

    def open(self) -> dict[str, torch.Tensor]:
        """Gives the layer memory to load into; returns its tensors by their names in the model."""
        initialize_layerwise_reload(self._root)
        materialize_layer(self._layer, get_layerwise_info(self._layer))
        held = {name: held for name, held in slots(self._layer) if held is not None and "." not in name}
        for tensor in held.values():
            if hasattr(tensor, "weight_loader"):
                tensor.weight_loader = layerwise._get_original_loader(tensor)
        return {f"{self._name}.{name}": tensor.detach() for name, tensor in held.items()}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def process(self) -> None:
        """Processes what was loaded, and puts it in force where the engine reads it."""
        info = get_layerwise_info(self._layer)
        info.load_numel = info.load_numel_total
        layerwise._layerwise_process(self._layer, info)

    def abandon(self) -> None:
        """Gives an open layer its tensors of before back."""
        _abandon(self._root)


def _abandon(root: Any, model_config: Any = None) -> None:
    for layer in root.modules():
        # vLLM would load it all now, fail at a tensor that does not fit, and keep it for the next reload.
        info = get_layerwise_info(layer)
        info.loaded_weights.clear()
        info.load_numel = 0
    finalize_layerwise_reload(root, model_config)


def lacking(model: nn.Module) -> Iterator[str]:
    """Finds layers that the engine fuses from several of a checkpoint's tensors, and of which only some came.

    vLLM creates such a layer as soon as one part comes; what is missing is then whatever was in memory. The list of loaded
    parameters does not show it: the fused one counts as loaded.

    Args:
        model: The engine's model, while a reload is open, once everything was loaded.

    Yields:
        ``"model.layers.0.self_attn.qkv_proj lacks k"``.
    """
    for name, layer in model.named_modules():
        if not isinstance(layer, QKVParallelLinear | MergedColumnParallelLinear):
            continue
        parts = ("q", "k", "v") if isinstance(layer, QKVParallelLinear) else tuple(range(len(layer.output_sizes)))
        came = defaultdict(set)
        # What came completely has been processed already, and nothing is left of it here.
        for parameter, call in get_layerwise_info(layer).loaded_weights:
            came[parameter].add(call.arguments.get("loaded_shard_id"))
        for shards in came.values():
            if shards <= set(parts):  # anything else came in one piece, or in larger ones
                yield f"{name} lacks {', '.join(str(part) for part in parts if part not in shards)}"


def first_names(model: nn.Module) -> dict[str, str]:
    """Returns the first name of every parameter by each of its names: parts of a model share some.

    Seen in vLLM's Transformers backend: a router is ``mlp.experts.gate`` as well, and loaders report ``mlp.gate``.
    """
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(parameter), name) for name, parameter in named}


def own_names(loaded: Iterable[str], wanted: Collection[str], first: Mapping[str, str]) -> set[str]:
    """Returns what was loaded by the names of the model's own parameters.

    Seen in vLLM 0.26: a MoE layer reports ``experts.w13_weight`` for its parameter ``experts.routed_experts.w13_weight``. In
    0.32 it reports the latter. Of a layer that is wrapped for LoRA, it reports the parameter's name without the wrapper (0.28).

    Args:
        loaded: The names that the model's ``load_weights`` gave.
        wanted: The names of its parameters.
        first: What `first_names` returned.
    """
    full = {unwrapped(name): name for name in first}

    def own(name: str) -> str:
        module, _, parameter = name.rpartition(".")
        for candidate in (name, f"{module}.{_EXPERTS}.{parameter}"):
            known = full.get(candidate, candidate)
            if (found := first.get(known, known)) in wanted:
                return found
        return name

    return {own(name) for name in loaded}


@contextmanager
def first_load(config: Any, see: Callable[[str, torch.Tensor], None], *, with_experts: bool) -> Iterator[None]:
    """Shows what vLLM's own loader reads of a checkpoint; what other loaders read is not known, and a dummy is nothing.

    Args:
        config: vLLM's configuration of the model; a draft model has another one.
        see: Gets each name and tensor.
        with_experts: Experts, too. There are thousands, of 1 ms each.
    """
    original = DefaultModelLoader.get_all_weights

    def get_all_weights(self: Any, model_config: Any, model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in original(self, model_config, model):
            if model_config is config and (with_experts or ".experts." not in name):
                see(name, tensor)
            yield name, tensor

    DefaultModelLoader.get_all_weights = get_all_weights
    try:
        yield
    finally:
        DefaultModelLoader.get_all_weights = original


def _picked(model: nn.Module, layers: Callable[[str], bool]) -> Iterator[nn.Module]:
    for name, module in model.named_modules():
        if layers(name) or callable(getattr(module, "process_weights_after_loading", None)):
            yield module


def _identities(model: nn.Module) -> dict[str, int]:
    return {name: id(held) for name, held in slots(model)}
