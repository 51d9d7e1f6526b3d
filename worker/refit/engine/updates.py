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
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from quirks_core.base.text import listed
from quirks_core.hook import report
from worker.errors import RefitError
from worker.refit.engine.reload import Batch, Load, Reload
from worker.refit.weights.copy_plan import CopyPlan, Tensors
from worker.refit.weights.manifest import Manifest

_watched: weakref.WeakSet[Updates] = weakref.WeakSet()
#: After how many copied updates the copies are compared with what the model's loaders would write, beside the first.
CHECK_EVERY = 64
#: How many updates are recorded at most: a trainer that never sends the same would pay for each.
_RECORDINGS = 4


def of(model: Any) -> Updates | None:
    """Returns the updates of a model; None if nothing watches them, or for what only stands before a model."""
    return next((one for one in _watched if one._model is model), None)


def unpacked(consume: Load, *args: Any, **kwargs: Any) -> Any:
    """Takes tensors out of a buffer of a trainer's, without clones if they are copied or cloned at once.

    vLLM's ``packed_ipc_consumer`` (`consume`) clones each tensor, because the reload keeps some for later.
    """
    copying = [one for one in _watched if one._update is not None and one._plan is not None]
    with _Uncloned() if len(copying) == 1 else nullcontext():
        return consume(*args, **kwargs)


class Updates:
    """The updates of a model that was just loaded, recorded and copied from now on.

    Attributes:
        copied: How many tensors of the last one were copied.
        loaded: How many went to the model's loaders.
        missing: Names of tensors that were recorded and did not come; they keep their values.
    """

    def __init__(self, model: nn.Module, model_config: Any) -> None:
        self.copied = self.loaded = 0
        self.missing: tuple[str, ...] = ()
        self._model = model
        self._config = model_config
        self._plan: CopyPlan | None = None
        self._update: Reload | None = None
        self._came: set[str] = set()
        self._strays: set[str] = set()  # not as recorded
        self._recordings = 0
        self._lock = threading.RLock()  # some engines load from threads of their own
        model.load_weights = partial(self.load, model.load_weights)
        _watched.add(self)

    def open(self, initialize: Load) -> None:
        """An update begins; `initialize` is vLLM's ``initialize_layerwise_reload``."""
        with self._lock:
            if self._update is not None:  # it was not closed
                self._plan = None
                self._update.abandon()
            self._update = None
            self._came, self._strays = set(), set()
            plan = self._plan = self._plan if self._plan is not None and self._plan.holds(self._model) else None
            if plan is not None:
                if torch.accelerator.is_available():
                    torch.accelerator.synchronize()  # what still computes with the weights before
                plan.check_every = CHECK_EVERY
                # Any other layer may get a tensor that is not as recorded.
                self._update = Reload(self._model, self._config, lambda name: name not in plan.plain, plan=plan)
                if "" not in plan.plain:  # other quirks find out from its root whether a model is being reloaded
                    initialize(SimpleNamespace(modules=lambda: [self._model]))
            elif self._recordings < _RECORDINGS:
                self._recordings += 1
                # Not of the model itself: vLLM's function would come back here.
                update = Reload(self._model, self._config, lambda _: True, is_recorded=True)
                update.open()
                self._update = update
            else:
                self.copied = self.loaded = 0
                initialize(self._model)

    def load(self, load: Load, weights: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Takes some of an update's tensors; returns what `load`, the model's own ``load_weights``, does."""
        with self._lock:
            if self._update is None:
                return load(weights, *args, **kwargs)
            plan, written = self._update.plan, set[str]()
            if plan is not self._plan:
                raise RefitError("an earlier part of this weight update failed; begin another one")
            try:
                found = self._update.load(lambda tensors: load(tensors, *args, **kwargs), self._sorted(weights, written))
            except BaseException:
                self._plan = None
                raise
            return None if found is None else written | set(found)

    def close(self, finalize: Load, *args: Any, **kwargs: Any) -> None:
        """An update ends; `finalize` is vLLM's ``finalize_layerwise_processing``, with what it was given after the model."""
        with self._lock:
            if self._update is None:
                finalize(self._model, *args, **kwargs)
                return
            update, plan = self._update, self._plan
            self._update = self._plan = None  # unless all goes well
            update.close(lambda: finalize(self._model, *args, **kwargs))
            before, self.missing, self.copied, self.loaded = self.missing, (), 0, len(update.sent)
            if update.plan is None:
                self._plan = _recorded(update)
            else:
                self._plan = None if self._strays else plan
                self._note(update.plan, before)

    def _sorted(self, weights: Tensors, written: set[str]) -> Iterator[Batch]:
        """Yields what is as recorded, and what is not; adds the names of the parameters to which the former is copied."""
        # A collection is there already; how much of a stream there is room for is unknown.
        for pairs in [weights] if isinstance(weights, Collection) else ([pair] for pair in weights):
            known: dict[str, torch.Tensor] = {}  # if one comes twice, the last counts
            others: list[tuple[str, torch.Tensor]] = []
            for name, tensor in pairs:
                if (plan := self._plan) is not None and self._is_known(plan, name, tensor):
                    known[name] = tensor
                    written |= plan.goes_to(name)
                else:
                    others.append((name, tensor))
                    self._strays.add(name)
                self._came.add(name)
            yield list(known.items()), others

    def _is_known(self, plan: CopyPlan, name: str, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is what was recorded under its name."""
        if (place := plan.manifest.index.get(name)) is None or name in self._strays:
            return False
        spec = plan.manifest.tensors[place]
        return (tensor.dtype, tensor.shape) == (spec.torch_dtype, spec.shape) and tensor.is_contiguous()

    def _note(self, plan: CopyPlan, before: tuple[str, ...]) -> None:
        """Notes what was copied, and logs what was not as recorded; what is missing, if it was not so in the update before."""
        recorded = plan.manifest.index
        self.copied = len(plan.copied & self._came - self._strays)
        self.missing = tuple(name for name in recorded if name not in self._came)
        if self._strays:
            report.info(
                f"recorded-updates: {len(self._strays)} tensors came that are not as recorded, and were loaded by vLLM: "
                f"{listed(sorted(self._strays))}; the next update is recorded"
            )
        if self.missing and self.missing != before:
            count, names = len(self.missing), listed(self.missing)
            report.info(f"recorded-updates: {count} of {len(recorded)} tensors did not come and keep their values: {names}")


def _recorded(update: Reload) -> CopyPlan | None:
    """Returns what can be copied from the next update on; None if nothing can."""
    sent = update.sent
    twice = [name for name, count in Counter(name for name, _, _ in sent).items() if count > 1]
    problem = "" if sent else "nothing came"
    if twice:
        problem = f"{len(twice)} tensors came more than once: {listed(twice)}"
    elif unloaded := update.unloaded():
        problem = f"{len(unloaded)} parameters of the model got no value: {listed(unloaded)}"
    if (plan := None if problem else update.recorded(Manifest.decode(sent))) is None:
        problem = problem or "not everything was loaded, or not by one thread"
        report.info(f"recorded-updates: the next update is not copied, because of this one {problem}")
        return None
    ignored = len(sent) - len(plan.copied | plan.reloaded)
    report.info(
        f"recorded-updates: of {len(sent)} tensors {len(plan.copied)} are copied from the next update on, "
        f"{len(plan.reloaded)} are loaded by vLLM ({len(plan.modules)} layers), {ignored} are for no parameter here"
    )
    return plan if plan.copied else None


class _Uncloned(TorchFunctionMode):  # type: ignore[misc]
    """Has clones of tensors be the tensors themselves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return args[0] if func is torch.Tensor.clone else func(*args, **(kwargs or {}))
