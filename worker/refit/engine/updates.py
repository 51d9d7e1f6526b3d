"""Weight updates through vLLM's layerwise reload, by any engine: the first complete one is recorded, later ones are copied.

vLLM's transfer engines, ``reload_weights`` and trainers that load chunk by chunk all open that reload, call the model's
``load_weights`` any number of times, and close it. The quirk ``recorded-updates`` puts `Updates` between them and the model.
What will come is not announced. So each tensor is copied as it comes, if it is what was recorded, and everything else goes to
the model's loaders: layers that are more than copies are opened for the reload as vLLM does, the others take it as it is.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from quirks_core.base.text import listed
from quirks_core.hook import report
from worker.errors import RefitError
from worker.refit.engine.reload import Load, Reload
from worker.refit.weights.copy_plan import CopyPlan, Tensors
from worker.refit.weights.manifest import Manifest

_ATTRIBUTE = "_model_quirks_updates"
#: Each `_Copied` that is open.
_copying: weakref.WeakSet[Any] = weakref.WeakSet()
#: After how many copied updates the copies are compared with what the model's loaders would write, beside the first.
CHECK_EVERY = 64
#: How many updates are recorded at most: a trainer that never sends the same would pay for each.
_RECORDINGS = 4


@dataclass(frozen=True, slots=True)
class Ways:
    """What an update did.

    Attributes:
        copied: How many tensors were copied.
        loaded: How many went to the model's loaders.
        missing: Names of tensors that were recorded and did not come; they keep their values.
    """

    copied: int = 0
    loaded: int = 0
    missing: tuple[str, ...] = ()


def watch(model: nn.Module, model_config: Any) -> None:
    """Has a model that was just loaded record and copy its updates."""
    if of(model) is None:
        setattr(model, _ATTRIBUTE, Updates(model, model_config))


def of(model: Any) -> Updates | None:
    """Returns the updates of a model; None if nothing watches them, or for what only stands before a model."""
    found = vars(model).get(_ATTRIBUTE)
    return found if isinstance(found, Updates) else None


def unpacked(consume: Load, *args: Any, **kwargs: Any) -> Any:
    """Takes tensors out of a buffer of a trainer's, without a copy of those that are copied at once.

    Args:
        consume: vLLM's ``packed_ipc_consumer``, which clones each tensor, because the reload keeps some for later.
        *args: What it takes.
        **kwargs: The same, by name.
    """
    updates = list(_copying)
    if len(updates) != 1:
        return consume(*args, **kwargs)
    with _Uncloned():
        found = consume(*args, **kwargs)
    return [(name, tensor if updates[0].copies(name, tensor) else tensor.clone()) for name, tensor in found]


class Updates:
    """The updates of one model.

    Attributes:
        last: What the last one did.
    """

    def __init__(self, model: nn.Module, model_config: Any) -> None:
        self.last = Ways()
        self._model = model
        self._config = model_config
        self._plan: CopyPlan | None = None
        self._open: Reload | _Copied | None = None
        self._recordings = 0
        self._lock = threading.Lock()  # some engines load from threads of their own
        self._holder = 0
        original = model.load_weights

        def load_weights(weights: Any, *args: Any, **kwargs: Any) -> Any:
            return self.load(original, weights, *args, **kwargs)

        model.load_weights = load_weights

    def open(self, initialize: Load) -> None:
        """An update begins.

        Args:
            initialize: vLLM's ``initialize_layerwise_reload``.
        """
        if self._is_inside:
            initialize(self._model)
            return
        with self._inside():
            if self._open is not None:  # an update that was not closed
                self._plan = None
                self._taken().abandon()
            if self._plan is not None and not self._plan.holds(self._model):
                self._plan = None
            is_reloading = any(get_layerwise_info(layer).can_load() for layer in self._model.modules())
            if self._plan is not None:
                self._open = _Copied(self._model, self._config, self._plan, initialize)
                _copying.add(self._open)
            elif self._recordings < _RECORDINGS and not is_reloading:
                self._recordings += 1
                reload = Reload(self._model, self._config, is_recorded=True)
                reload.open()
                self._open = reload
            else:
                self.last = Ways()
                initialize(self._model)

    def load(self, load: Load, weights: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Takes some of an update's tensors; returns what ``load_weights`` of the model does.

        Args:
            load: The model's own ``load_weights``.
            weights: Names and tensors, as it takes them.
            *args: What else it was given.
            **kwargs: The same, by name.
        """
        if self._is_inside:
            return load(weights, *args, **kwargs)
        with self._inside():
            if self._open is None:
                return load(weights, *args, **kwargs)
            if self._plan is None and isinstance(self._open, _Copied):
                raise RefitError("an earlier part of this weight update failed; begin another one")
            try:
                return self._open.load(lambda tensors: load(tensors, *args, **kwargs), weights)
            except BaseException:
                self._plan = None
                _copying.discard(self._open)
                raise

    def close(self, finalize: Load, *args: Any, **kwargs: Any) -> None:
        """An update ends.

        Args:
            finalize: vLLM's ``finalize_layerwise_processing``.
            *args: What it was given after the model.
            **kwargs: The same, by name.
        """
        if self._is_inside or self._open is None:
            finalize(self._model, *args, **kwargs)
            return
        with self._inside():
            update, plan = self._taken(), self._plan
            self._plan = None  # unless all goes well
            update.close(lambda: finalize(self._model, *args, **kwargs))
            before = self.last
            if isinstance(update, Reload):
                self.last = Ways(loaded=len(update.sent))
                self._plan = _recorded(update)
            else:
                self.last = update.ways
                update.plan.uses += 1
                self._plan = None if update.strays else plan
                update.report(before)

    def _taken(self) -> Reload | _Copied:
        update, self._open = self._open, None
        assert update is not None  # noqa: S101 - whoever calls this has looked
        _copying.discard(update)
        return update

    @property
    def _is_inside(self) -> bool:
        """Whether this is called by vLLM or another quirk as a part of what this thread does here already."""
        return self._holder == threading.get_ident()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = 0


def _recorded(update: Reload) -> CopyPlan | None:
    """Returns what can be copied from the next update on; None if nothing can."""
    sent = update.sent
    twice = [name for name, count in Counter(name for name, _, _ in sent).items() if count > 1]
    problem = "" if sent else "nothing came"
    if not update.is_recorded:
        problem = "not everything was loaded, or not by one thread"
    elif twice:
        problem = f"{len(twice)} tensors came more than once: {listed(twice)}"
    elif unloaded := update.unloaded():
        problem = f"{len(unloaded)} parameters of the model got no value: {listed(unloaded)}"
    plan = None if problem else update.plan(Manifest.decode(sent))
    if plan is None:
        report.info(f"recorded-updates: the next update is not copied, because of this one {problem}")
        return None
    ignored = len(sent) - len(plan.copied | plan.reloaded)
    report.info(
        f"recorded-updates: of {len(sent)} tensors {len(plan.copied)} are copied from the next update on, "
        f"{len(plan.reloaded)} are loaded by vLLM ({len(plan.modules)} layers), {ignored} are for no parameter here"
    )
    return plan if plan.copied else None


class _Copied:
    """An update that is copied as recorded, as far as it is what was recorded."""

    def __init__(self, model: nn.Module, model_config: Any, plan: CopyPlan, initialize: Load) -> None:
        self.plan = plan
        self.strays: set[str] = set()  # not as recorded
        self.repeated: set[str] = set()  # came more than once
        self._model = model
        self._config = model_config
        self._specs = {spec.name: spec for spec in plan.manifest.tensors}
        self._came: set[str] = set()
        self._copied = self._loaded = 0
        self._reload: Reload | None = None
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # what still computes with the weights before
        plan.check_every = CHECK_EVERY
        plan.begin()
        # Other quirks find out from its root whether a model is being reloaded.
        self._root = SimpleNamespace(modules=lambda: [model])
        if "" not in plan.plain:
            initialize(self._root)

    @property
    def ways(self) -> Ways:
        """What it did."""
        missing = tuple(name for name in self._specs if name not in self._came)
        return Ways(self._copied, self._loaded, missing)

    def load(self, load: Load, weights: Tensors) -> Any:
        """Copies some tensors, and has the others loaded."""
        written: set[str] = set()
        rest = self._rest(weights, written)
        first = list(islice(rest, 1))
        if not first:
            return written
        self._open_layers()
        found = load(chain(first, rest))
        return None if found is None else written | set(found)

    def report(self, before: Ways) -> None:
        """Logs what was not as recorded; what is missing, if it was not so in the update before."""
        if self.repeated:
            report.info(f"recorded-updates: sent more than once, the last one counts: {listed(sorted(self.repeated))}")
        if self.strays:
            report.info(
                f"recorded-updates: {len(self.strays)} tensors came that are not as recorded, and were loaded by vLLM: "
                f"{listed(sorted(self.strays))}; the next update is recorded"
            )
        if (missing := self.ways.missing) and missing != before.missing:
            count = len(self.plan.manifest.tensors)
            report.info(
                f"recorded-updates: {len(missing)} of {count} tensors did not come and keep their values: {listed(missing)}"
            )

    def close(self, finalize: Callable[[], None]) -> None:
        """Ends the update."""
        try:
            finalize()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Gives layers that are not complete their tensors of before back."""
        if self._reload is not None:
            self._reload.abandon()
        finalize_layerwise_reload(self._root, self._config)

    def _rest(self, weights: Tensors, written: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Copies what is as recorded, adds the names of the parameters to those that were written, and yields the rest."""
        # A collection is there already; how much of a stream there is room for is unknown.
        together: Iterable[Collection[tuple[str, torch.Tensor]]]
        together = [weights] if isinstance(weights, Collection) else ([pair] for pair in weights)
        for pairs in together:
            others = set()
            for name, tensor in pairs:
                if not self._is_as_recorded(name, tensor):
                    others.add(name)
                    (self.repeated if name in self._came else self.strays).add(name)
                self._came.add(name)
            fitting = [pair for pair in pairs if pair[0] not in others]
            for name, _ in fitting:
                written |= self.plan.goes_to(name)
                self._copied += name in self.plan.copied
            reloaded = self.plan.take(self._model, fitting)
            for pair in chain(reloaded, (pair for pair in pairs if pair[0] in others)):
                self._loaded += 1
                yield pair

    def copies(self, name: str, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is copied as soon as it comes, and needed no longer."""
        return name in self.plan.copied and name not in self.plan.reloaded and self._is_as_recorded(name, tensor)

    def _is_as_recorded(self, name: str, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is what was recorded under its name, and comes for the first time."""
        spec = self._specs.get(name)
        if spec is None or name in self._came:
            return False
        return (tensor.dtype, tensor.shape) == (spec.torch_dtype, spec.shape) and tensor.is_contiguous()

    def _open_layers(self) -> None:
        """Makes the layers ready to be loaded that are more than copies."""
        if self._reload is None:
            names = {
                name
                for name, layer in self._model.named_modules()  # those that have tensors, or had some when they were loaded
                if layer._parameters or layer._buffers or any(get_layerwise_info(layer).restore_metadata)
            }
            reload = Reload(self._model, self._config, {"", *names - self.plan.plain})
            reload.open()
            self._reload = reload


class _Uncloned(TorchFunctionMode):  # type: ignore[misc]
    """Has clones of tensors be the tensors themselves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return args[0] if func is torch.Tensor.clone else func(*args, **(kwargs or {}))
