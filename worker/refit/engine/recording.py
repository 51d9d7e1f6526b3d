"""Records what a refit does to memory while it goes through vLLM's layerwise reload, and finds out what is nothing but copying.

In that reload every loader runs twice: on the ``meta`` device, where vLLM counts what a layer still lacks, and on new memory,
from which the processed values are copied into the tensors that the engine runs on. The first shows which layer a tensor of
the trainer belongs to; the second what becomes of its elements. A layer qualifies if all of its tensors are covered by copies,
every element exactly once, nothing but a copy ever read or wrote them, and processing left the layer's attributes alone: no
packing, no quantisation, no derived value. A layer that is packed or quantised can be prepared: copies alone filled the memory
that vLLM gave it for loading until it was processed, and none of their sources belongs to another layer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.compiler import set_stance
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from worker.refit.weights.box import Region
from worker.refit.weights.copy_plan import CopyPlan, same_bytes, slots
from worker.refit.weights.expected import common
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.prepared import PreparedLayers, ReloadedLayer, Write, covers

_COPY = torch.ops.aten.copy_.default
_FILLS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)
#: They read a tensor's shape, not its values.
_MAKERS = (torch.ops.aten.empty_like.default, torch.ops.aten.new_empty.default, torch.ops.aten.new_empty_strided.default)
#: Elements of each copy that are looked at again when the layer is complete: code that torch does not see may have moved them.
_SAMPLES = 1024
#: Names of the methods of layers that are not quantised begin with this.
_AS_LOADED = "Unquantized"
_LOCAL_EXPERT = "_map_global_expert_id_to_local_expert_id"
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, str, tuple, torch.dtype)


class _Source(NamedTuple):
    """A tensor of the trainer's in some memory: from which byte to which, its name, and its dtype."""

    start: int
    end: int
    name: str
    dtype: torch.dtype


class Recording(TorchDispatchMode):  # type: ignore[misc]
    """Watches one refit: made before the reload is opened, `opened` after, active while it loads and closes."""

    def __init__(self, model: nn.Module) -> None:
        """Notes the tensors that the engine runs on."""
        super().__init__()
        self._model = model
        self._live = {name: tensor for name, tensor in slots(model) if tensor is not None}
        self._alive: dict[int, StorageWeakRef] = {}  # while one is there, no other memory gets the same identity
        self._names: dict[int, list[str]] = defaultdict(list)
        for name, tensor in self._live.items():
            self._names[self._memory(tensor)].append(name)
        self._emptied: dict[int, str] = {}
        self._sizes: dict[str, int] = {}  # elements of the tensors that vLLM gives memory for loading
        self._stay: set[str] = set()  # those that it leaves where they are
        self._loaded: dict[str, list[Write]] = {}  # what filled a tensor before it was processed; nothing if that is not known
        self._sources: dict[int, list[_Source]] = defaultdict(list)
        self._writes: dict[int, dict[Write, torch.Tensor | None]] = defaultdict(dict)
        self._filled: dict[str, list[Write]] = {}
        self._tainted: set[int] = set()
        self._tainted_sources: set[str] = set()
        self._goes_to: dict[str, set[str]] = defaultdict(set)
        self._computed: set[str] = set()  # of something else than sources alone
        self._looked_at: set[str] = set()
        self._attributes = dict(_attributes(model))
        self._custom = _CustomOperators(self._taint)
        self._paths = {layer: name for name, layer in model.named_modules()}

    def __enter__(self) -> Self:
        # A function that is called under a dispatch mode is not compiled, and torch never compiles it again.
        self._stance = set_stance("force_eager")
        self._stance.__enter__()
        super().__enter__()
        self._custom.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._custom.__exit__(*error)
        super().__exit__(*error)
        self._stance.__exit__(*error)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Watches, but for the methods that quantise: compiled for speed, they give other bits while they are watched."""
        methods = {method for layer in self._paths if (method := getattr(layer, "quant_method", None)) is not None}
        for method in methods:
            method.process_weights_after_loading = partial(self._process, method, method.process_weights_after_loading)
        try:
            with self:
                yield
        finally:
            for method in methods:
                del method.process_weights_after_loading

    def _process(self, method: object, process: Callable[[nn.Module], None], layer: nn.Module) -> None:
        """Notes what filled a layer, and processes it."""
        held = [(name, tensor) for name, tensor in slots(layer) if tensor is not None]
        for name, tensor in held:
            if "." not in name:
                writes = [] if self._memory(tensor) in self._tainted else list(self._writes[self._memory(tensor)])
                self._loaded.setdefault(f"{self._paths.get(layer)}.{name}", writes)  # some are processed twice
        if type(method).__name__.startswith(_AS_LOADED):
            process(layer)
            return
        self.__exit__(None, None, None)
        try:
            # Only a tensor whose memory is never replaced, a bias, may be as it was loaded afterwards.
            kept = [(tensor, tensor.clone()) for _, tensor in held if _identity(tensor) in self._names]
            process(layer)
            same = [id(tensor) for tensor, before in kept if same_bytes(tensor, before)]
        finally:
            self.__enter__()
        self._taint([tensor for _, tensor in held if id(tensor) not in same])

    def opened(self) -> None:
        """Notes the tensors without memory that vLLM has put into the place of the model's."""
        for name, tensor in slots(self._model):
            if tensor is not None and not tensor.is_meta:
                self._stay.add(name)
            elif tensor is not None:
                self._emptied[self._memory(tensor)] = name
                self._sizes[name] = tensor.numel()

    def see(self, name: str, tensor: torch.Tensor) -> None:
        """Knows a tensor of the trainer's from then on."""
        start = tensor.storage_offset() * tensor.element_size()
        found = _Source(start, start + tensor.numel() * tensor.element_size(), name, tensor.dtype)
        known = self._sources[self._memory(tensor)]
        known.insert(bisect_right(known, start, key=attrgetter("start")), found)
        if not tensor.is_contiguous():
            self._tainted_sources.add(name)

    def plan(
        self,
        manifest: Manifest,
        unloaded: Sequence[str] = (),
        reload: Callable[[str, nn.Module], ReloadedLayer] | None = None,
    ) -> CopyPlan:
        """Returns what can be copied from now on; the rest goes through the reload.

        Args:
            manifest: What the trainer sent.
            unloaded: Parameters of the model that got no value.
            reload: Reloads one layer, given its name; None if no layer is to be prepared.
        """
        plain = {name for name in self._filled if self._is_covered(name)}
        is_moved = any(name not in self._names.get(_identity(tensor), ()) for name, tensor in self._live.items())
        if is_moved:
            plain.clear()  # a loader has put other memory in the place of a tensor's
        # What a loader looks at and copies nowhere may have gone a way that is not recorded; what it leaves alone is not for
        # this process (another rank's experts).
        self._tainted_sources |= {name for name in self._looked_at - self._goes_to.keys() if not self._is_elsewhere(name)}
        loads = self._loads(plain) if reload is not None and not is_moved else {}
        goes_to = dict(self._goes_to)
        # What a loader computes may come from any of the sources that a loader computed with.
        computed = {name for name in self._computed if _module(name) not in loads}
        goes_to |= {source: goes_to.get(source, set()) | computed for source in self._tainted_sources}
        layers = {source: {_module(name) for name in names} for source, names in goes_to.items()}
        # A tensor that the reload wrote to, and that is not known to be nothing but copies, spoils its layer; a layer that is
        # spoilt takes all of its sources with it, and each of those all of its layers.
        spoilt = {_module(name) for name in self._filled.keys() - plain}
        spoilt |= {_module(name) for names in goes_to.values() for name in names - plain}
        for key, value in _attributes(self._model):
            before = self._attributes.get(key)
            if before is not value and not (isinstance(value, _PLAIN) and before == value):
                spoilt.add(key[0])
        prepared = spoilt & loads.keys()
        spoilt -= prepared
        reloaded = set(self._tainted_sources)
        while True:
            spoilt = self._with_tied(spoilt | {layer for source in reloaded for layer in layers.get(source, ())})
            more = {source for source, found in layers.items() if found & spoilt} - reloaded
            if not more:
                break
            reloaded |= more
        prepared -= spoilt

        def is_copied(name: str) -> bool:
            names, layer = self._names[_identity(self._live[name])], _module(name)
            return name == names[0] and layer not in spoilt and (len(names) > 1 or layer not in prepared)  # of tied ones, once

        writes = [write._replace(destination=name) for name in sorted(plain) if is_copied(name) for write in self._filled[name]]
        return CopyPlan(
            self._model,
            manifest,
            writes,
            reloaded=reloaded,
            modules=self._with_tied({layer for source in reloaded for layer in layers.get(source, ())}),
            unloaded=unloaded,
            prepared=PreparedLayers(
                {name: reload(name, self._model.get_submodule(name)) for name in prepared} if reload is not None else {},
                [write for name in sorted(prepared) for write in loads[name]],
            ),
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is _COPY:
            self._copied(*args[:2])
        elif func in _FILLS:
            self._written(args[0], Write("", None, "", Region.lying(args[0]), args[1] if len(args) > 1 else 0), None)
        elif func.is_view:
            if (found := self._source(args[0])) is not None:
                self._looked_at.add(found.name)
        elif func not in _MAKERS:
            self._taint(args, kwargs)
        return func(*args, **(kwargs or {}))

    # ---- what happens to memory

    def _copied(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        if not destination.numel() or _place(destination) == _place(source):
            return  # vLLM copies the experts of a MoE layer onto themselves
        found = self._source(source)
        if destination.is_meta:
            if found is not None and (name := self._emptied.get(_identity(destination))):
                self._goes_to[found.name].add(name)
        elif found is not None:
            view = source.expand(destination.shape)
            taken = Region(view.storage_offset() - found.start // source.element_size(), tuple(view.shape), view.stride())
            # As they will be there: a loader may bring another dtype, and a trainer on the CPU another device.
            write = Write(found.name, taken, "", Region.lying(destination))
            self._written(destination, write, _sample(view.to(destination)))
        elif not self._moved(destination, source):
            self._taint(source, destination)

    def _written(self, destination: torch.Tensor, write: Write, sample: torch.Tensor | None) -> None:
        """Notes a copy of a source, or a constant, in some memory."""
        if destination.is_meta or not destination.numel():
            return
        memory = self._memory(destination)
        self._writes[memory].setdefault(write, sample)
        for name in self._names.get(memory, ()):  # a bias: its memory is never replaced
            self._filled[name] = self._in(self._live[name])
            if write.source:
                self._goes_to[write.source].add(name)

    def _moved(self, destination: torch.Tensor, source: torch.Tensor) -> bool:
        """Notes that a complete tensor was copied into one that the engine runs on; False if this is anything else."""
        known = self._names.get(_identity(destination), ())
        names = [name for name in known if Region.lying(self._live[name]) == Region.lying(destination)]
        if not names:
            return False
        same = (source.dtype, source.shape, source.stride()) == (destination.dtype, destination.shape, destination.stride())
        for name in names:
            self._filled[name] = self._in(source) if same else []
        if _identity(source) in self._tainted or not self._writes.get(_identity(source)):
            self._computed.update(names)
        return same

    def _in(self, tensor: torch.Tensor) -> list[Write]:
        """Returns the copies that made a tensor, relative to its first element; none if something else touched its memory."""
        if _identity(tensor) in self._tainted:
            return []
        found = []
        for write, sample in self._writes[_identity(tensor)].items():
            region = replace(write.written, offset=write.written.offset - tensor.storage_offset())
            if sample is not None and not torch.equal(_sample(region.of(tensor)), sample):
                return []
            found.append(write._replace(written=region))
        return found

    def _taint(self, *given: Any) -> None:
        """Something reads or writes memory that is no copy: what is in it, or made of it, cannot be copied again."""
        for tensor in tree_leaves(given):
            if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
                continue
            if (found := self._source(tensor)) is not None:
                self._tainted_sources.add(found.name)
            self._tainted.add(self._memory(tensor))

    # ---- afterwards

    def _loads(self, plain: set[str]) -> dict[str, list[Write]]:
        """Returns for each layer that can be prepared all copies and constants that fill it."""
        # A tensor of several layers that stays where it is (a router's bias) is copied by itself.
        tied = {name for name in self._stay & plain if len(self._names[_identity(self._live[name])]) > 1}
        goes_to = [{_module(name) for name in names - tied} for names in self._goes_to.values()]
        shared = {layer for layers in goes_to if len(layers) > 1 for layer in layers}
        device = next(iter(self._live.values())).device
        filled: dict[str, dict[str, list[Write]]] = defaultdict(dict)
        for name, size in self._sizes.items():
            writes = self._loaded.get(name, [])
            is_all = any(write.source for write in writes) and covers(writes, size, device)
            filled[_module(name)][name] = writes if is_all else []
        for name in self._stay & self._filled.keys() - tied:  # a bias
            filled[_module(name)][name] = self._filled[name] if name in plain else []
        loads = {}
        for layer, tensors in filled.items():
            # vLLM processes attention in another way, and after all other layers.
            is_attention = hasattr(self._model.get_submodule(layer), "process_weights_after_loading")
            if not is_attention and layer not in shared and all(tensors.values()):
                loads[layer] = [write._replace(destination=name) for name, writes in tensors.items() for write in writes]
        return loads

    def _is_covered(self, name: str) -> bool:
        """Returns whether copies and constants cover every element of a tensor exactly once, and no other tensor shares it."""
        tensor = self._live[name]
        regions = {Region.lying(self._live[other]) for other in self._names[_identity(tensor)]}  # of tied tensors, the same
        if _identity(tensor) in self._tainted or not tensor.is_contiguous() or len(regions) > 1:
            return False
        return covers(self._filled[name], tensor.numel(), tensor.device)

    def _is_elsewhere(self, name: str) -> bool:
        """Returns whether a source belongs to an expert that vLLM has on another rank: its loader may look at it."""
        layer, experts, rest = name.rpartition(".experts.")
        number = rest.partition(".")[0]
        found = self._experts.get(common(layer + experts[:-1]))
        return found is not None and number.isdigit() and found(int(number)) == -1

    @cached_property
    def _experts(self) -> dict[str, Callable[[int], int]]:
        """For each layer of experts what returns which of its experts here a global number stands for, -1 for none."""
        modules = ((name, getattr(module, _LOCAL_EXPERT, None)) for name, module in self._model.named_modules())
        return {common(name): found for name, found in modules if found is not None}

    def _with_tied(self, layers: set[str]) -> set[str]:
        """Adds the layers that have a tensor of one of these."""
        tied = [{_module(name) for name in names} for names in self._names.values() if len(names) > 1]
        return layers.union(*(group for group in tied if group & layers))

    def _source(self, tensor: torch.Tensor) -> _Source | None:
        known = self._sources.get(_identity(tensor))
        if not known:
            return None
        start = tensor.storage_offset() * tensor.element_size()
        found = known[bisect_right(known, start, key=attrgetter("start")) - 1]
        return found if found.start <= start < found.end and found.dtype == tensor.dtype else None

    def _memory(self, tensor: torch.Tensor) -> int:
        """Returns the identity of a tensor's memory, and keeps it from being given to another."""
        identity = _identity(tensor)
        if identity not in self._alive:
            self._alive[identity] = StorageWeakRef(tensor.untyped_storage())
        return identity


class _CustomOperators(TorchFunctionMode):  # type: ignore[misc]
    """Sees calls of operators that are none of torch's own; some of them read memory behind the back of a dispatch mode."""

    def __init__(self, seen: Callable[..., None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if isinstance(func, _OPERATORS):
            self._seen(args, kwargs)
        return func(*args, **(kwargs or {}))


def _attributes(model: nn.Module) -> Iterator[tuple[tuple[str, str, str], object]]:
    """Yields what layers, and the methods by which they are processed, hold beside tensors that are registered."""
    for path, module in model.named_modules():
        for owner in (module, getattr(module, "quant_method", None)):
            for name, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
                if name not in _OF_EVERY_MODULE:
                    yield (path, type(owner).__name__, name), value


def _identity(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _place(tensor: torch.Tensor) -> tuple[int, Region, torch.dtype]:
    return _identity(tensor), Region.lying(tensor), tensor.dtype


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Returns some of a tensor's elements, always the same, as bytes."""
    flat = tensor.detach().reshape(-1)
    chosen = torch.randint(len(flat), (_SAMPLES,), generator=torch.Generator().manual_seed(len(flat)))
    return flat[chosen.to(flat.device)].view(torch.uint8)


def _module(name: str) -> str:
    return name.rpartition(".")[0]
