"""The ledger of a worker process: what came with each update, and a digest of what the model runs on afterwards.

Nothing is read before the first update. Each update costs two samples of the model: one before it, which shows what was
changed past vLLM, and one after it. `quirks_core.hook.accounts` collects the entries in the engine's core and judges them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from quirks_core.base.errors import QuirksError, words
from quirks_core.hook import report
from quirks_core.ledger.account import COMPUTES, LEDGER_VARIABLE, Entry, LedgerSettings, Way
from worker.refit.engine.adapters import Adapters
from worker.refit.engine.finite import NotFinite, mend_cache
from worker.refit.engine.parameters import Parameters
from worker.refit.engine.taken import Coming, Taken
from worker.refit.weights.digest import Standing

_T = TypeVar("_T", bound=Callable[..., Any])
_ATTRIBUTE = "_model_quirks_ledger"

#: How often a running model of this process was loaded by a bare ``load_weights``.
raw_loads = 0


def watch(worker: Any) -> None:
    """Keeps a ledger of a worker of vLLM from now on; call it before the worker loads its model."""
    if not hasattr(worker, _ATTRIBUTE):
        setattr(worker, _ATTRIBUTE, Ledger(worker, LedgerSettings.read()))


def settle(worker: Any) -> dict[str, Any]:
    """Closes the update that is open, if it can be.

    Returns:
        ``entries`` since the last call, as JSON; ``is_open``, whether an update is still open.
    """
    found = getattr(worker, _ATTRIBUTE)
    return {"entries": [entry.model_dump(mode="json") for entry in found.settle()], "is_open": found.is_open}


def look(worker: Any) -> dict[str, Any]:
    """Returns an entry of what this process runs on now, as JSON, whether or not there was an update.

    Raises:
        QuirksError: The process keeps no ledger.
    """
    if (found := getattr(worker, _ATTRIBUTE, None)) is None:
        raise QuirksError(f"{LEDGER_VARIABLE}=off")
    return found.look().model_dump(mode="json")  # type: ignore[no-any-return]


def account(worker: Any) -> dict[str, Any] | None:  # noqa: ARG001
    """Returns a `quirks_core.ledger.account.Account` as JSON: the engine's core answers in the place of its workers.

    This function runs, and returns None, where the ledger is off.
    """
    return None


def trainer_at(worker: Any, updates: int) -> dict[str, Any] | None:  # noqa: ARG001
    """Takes how many updates the trainer has made, and returns as `account` does, from the engine's core."""
    return None


def mend(worker: Any, is_noted: bool) -> None:
    """Takes NaN out of the KV cache (`mend_cache`), unless it sleeps: it wakes without its content."""
    if getattr(worker, _ATTRIBUTE).has_cache:
        mend_cache(worker, is_noted=is_noted)


def is_spoilt(worker: Any) -> bool:
    """Returns whether the last update left values that are not finite."""
    last = getattr(worker, _ATTRIBUTE).last
    return last is not None and bool(last.not_finite)


class Ledger:
    """What a process knows of its updates.

    Attributes:
        last: The last entry; None before one.
        has_cache: The KV cache has memory.
    """

    def __init__(self, worker: Any, settings: LedgerSettings) -> None:
        self.last: Entry | None = None
        self._worker = worker
        self._whole = settings.whole
        self._standing = Standing(whole=settings.whole)
        self._number = 0
        self._new: list[Entry] = []
        self._of_model: Entry | None = None
        self._digests: dict[str, str] = {}
        self._taken = Taken()
        self._odd: dict[str, str] = {}
        self._adapters = Adapters(whole=settings.whole)
        self._coming: Coming | None = None
        self._is_inside = False
        self._is_off = False
        self._is_asleep = False
        self.has_cache = True
        for method, during in (
            ("load_model", self._loading),
            ("start_weight_update", self._starting),
            ("update_weights", self._inside),
            ("finish_weight_update", self._finishing),
            ("reload_weights", self._reloading),
            ("sleep", self._going_to_sleep),
            ("wake_up", self._waking),
        ):
            if (original := getattr(worker, method, None)) is not None:
                setattr(worker, method, _during(original, during))

    @property
    def is_open(self) -> bool:
        """Whether more of an update may come, whose end is not reported."""
        return self._coming is not None and self._coming.way == "raw"

    def settle(self) -> list[Entry]:
        """Closes the update that is open, and returns the entries since the last call.

        Tensors are on no device while a layerwise reload is open: some trainers, and our quirk for vLLM's CPU platform, load
        that way, and close it with the next request.
        """
        self._close_raw()
        new, self._new = self._new, []
        return new

    def look(self) -> Entry:
        """Returns the last entry with digests of what the model runs on now; while the engine sleeps, as it is.

        The account does not get it.
        """
        self._close_raw()
        last = self._of_model or Entry(number=0, way="start", rank=self._rank, sampled=not self._whole)
        if self._is_asleep:  # there may be no memory behind the tensors
            return last
        with _plain_tensors():
            held = self._held()
        received = self._taken.beside(self._past(held))
        return last.model_copy(update={"digests": held, "forms": self._forms(held), "received": received})

    # ---- where updates begin and end

    @contextmanager
    def _loading(self, *_: Any, **__: Any) -> Iterator[None]:
        from worker.refit.engine.reload import first_load  # it imports vLLM

        start = Coming("start", self._whole)
        self.__dict__.pop("_parameters", None)  # another model

        def see(name: str, tensor: torch.Tensor) -> None:
            with self._guarded():
                start.see(name, tensor)

        with first_load(self._worker.model_config, see, with_experts=self._worker.device_config.device_type == "cpu"):
            yield
        with self._guarded():
            self._taken.digests = start.digester.result()
            self._look_at_loads(self._worker.model_runner.get_model())
            if (manager := getattr(self._worker.model_runner, "lora_manager", None)) is not None:
                self._look_at_adapters(manager)

    @contextmanager
    def _starting(self, *_: Any, **__: Any) -> Iterator[None]:
        self._open("transfer")
        engine: Any = getattr(self._worker, "weight_transfer_engine", None)
        if self._coming is not None and hasattr(engine, "ways"):
            engine.see = self._coming.see_all
        yield

    @contextmanager
    def _finishing(self, *_: Any, **__: Any) -> Iterator[None]:
        with self._inside():
            yield
        self._close()

    @contextmanager
    def _reloading(self, *_: Any, **__: Any) -> Iterator[None]:
        self._open("reload")
        with self._finishing():
            yield

    @contextmanager
    def _going_to_sleep(self, level: int = 1, *_: Any, **__: Any) -> Iterator[None]:
        self._digests = {}  # what wakes has other digests
        if level > 1:  # nothing is left
            self._taken = Taken()
        self._is_asleep, self.has_cache = True, False
        yield

    @contextmanager
    def _waking(self, tags: Any = None, *_: Any, **__: Any) -> Iterator[None]:
        yield
        self._is_asleep = self._is_asleep and tags is not None and "weights" not in tags
        self.has_cache = self.has_cache or tags is None or "kv_cache" in tags

    def _look_at_loads(self, model: nn.Module) -> None:
        """Watches every call of the model's ``load_weights``."""
        load = model.load_weights

        @functools.wraps(load)
        def load_weights(weights: Any, *args: Any, **kwargs: Any) -> Any:
            global raw_loads
            if not self._is_inside:
                raw_loads += 1
                if self._coming is None or self._coming.way != "raw":
                    self._open("raw")
            return load(weights if self._coming is None else self._coming.passing(weights), *args, **kwargs)

        model.load_weights = load_weights

    def _look_at_adapters(self, manager: Any) -> None:
        load = manager._load_adapter

        @functools.wraps(load)
        def _load_adapter(request: Any) -> Any:
            adapter = load(request)
            with self._guarded():
                start = time.perf_counter()
                if (found := self._adapters.add(manager._adapter_manager, request, adapter)) is not None:
                    self._number += 1
                    found |= {"number": self._number, "rank": self._rank, "sampled": not self._whole}
                    self._add(Entry(**found, seconds=round(time.perf_counter() - start, 4)))
            return adapter

        manager._load_adapter = _load_adapter

    # ---- entries

    def _open(self, way: Way) -> None:
        """An update begins: looks at what the model runs on before it."""
        if self._is_off:
            return
        with self._guarded():
            if self._coming is not None:
                self._close()
            start = time.perf_counter()
            held = self._held()
            if not self._number:
                odd = self._not_finite(held)
                self._odd = {name: held[name] for name in odd}
                self._add(self._entry(held, number=0, way="start", not_finite=odd))
            past = self._past(held)
            self._digests = held
            self._coming = Coming(way, self._whole, past, time.perf_counter() - start)

    def _close(self) -> None:
        """The update is complete: looks at what the model runs on now."""
        with self._guarded():
            coming, self._coming = self._coming, None
            if coming is None or getattr(self._worker, "_weight_update_is_draft", False):
                return
            start = time.perf_counter()
            ways = getattr(self._worker.weight_transfer_engine, "ways", {}) if coming.way == "transfer" else {}
            held, last = self._held(), self._digests
            self._digests = held
            self._number += 1
            came = coming.digester.result()
            changed = tuple(name for name in held if name in last and held[name] != last[name])
            self._taken.add(came, changed, held, self._worker.weight_transfer_engine.copied if ways else None)
            self._add(
                self._entry(
                    held,
                    number=self._number,
                    way=coming.way,
                    tensors=ways.get("copied", 0) + ways.get("reloaded", 0) or coming.tensors,
                    bytes=ways.get("bytes", coming.bytes),
                    changed=changed,
                    came=() if ways else tuple(came),
                    not_finite=tuple(sorted(ways["not_finite"])) if "not_finite" in ways else self._not_finite(held),
                    unannounced=coming.unannounced,
                    is_cast=any(kind.itemsize > self._worker.model_config.dtype.itemsize for kind in coming.dtypes),
                    seconds=round(coming.seconds + time.perf_counter() - start, 4),
                )
            )

    def _close_raw(self) -> None:
        """Closes an update whose end nobody reports, unless it goes on: tensors are on no device meanwhile."""
        with self._guarded():
            parameters = self._worker.model_runner.get_model().parameters()
            if self.is_open and not any(parameter.is_meta for parameter in parameters):
                self._close()

    def _entry(self, held: dict[str, str], **values: Any) -> Entry:
        """Makes an entry of the model as it is now."""
        values |= {"rank": self._rank, "sampled": not self._whole, "received": dict(self._taken.digests)}
        return Entry(digests=held, forms=self._forms(held), **values)

    def _past(self, held: Mapping[str, str]) -> tuple[str, ...]:
        """Returns what changed since the last update, without one that vLLM knows of."""
        if self._worker.parallel_config.enable_eplb:  # experts change places between updates
            return ()
        return tuple(sorted(name for name in held.keys() & self._digests.keys() if held[name] != self._digests[name]))

    def _forms(self, held: Mapping[str, str]) -> dict[str, str]:
        return {name: self._standing.forms[name] for name in held if not name.endswith(COMPUTES)}

    def _add(self, entry: Entry) -> None:
        self.last = entry
        if entry.way != "lora":
            self._of_model = entry
        self._new.append(entry)

    # ---- what the model runs on

    @property
    def _rank(self) -> int:
        parallel = self._worker.parallel_config
        return int(parallel.data_parallel_index * parallel.world_size + parallel.rank)

    @functools.cached_property
    def _parameters(self) -> Parameters:
        return Parameters(self._worker.model_runner.get_model())

    def _held(self) -> dict[str, str]:
        return self._standing.digests(chain(self._parameters.tensors(), self._parameters.answers()))

    def _not_finite(self, held: Mapping[str, str]) -> tuple[str, ...]:
        """Names what is not finite; what was not so at the start, and never changed, may be memory that nothing reads."""
        found = NotFinite()
        found.look_at_model(self._parameters)
        return tuple(sorted(name for name in found if self._odd.get(name, "") != held.get(name)))

    # ---- guards

    @contextmanager
    def _inside(self, *_: Any, **__: Any) -> Iterator[None]:
        """What the model loads meanwhile belongs to an update that vLLM knows of."""
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """An error of the ledger ends the ledger, and no update."""
        try:
            with _plain_tensors():
                yield
        except Exception as error:
            self._is_off, self._coming = True, None
            report.info(f"ledger: this process keeps none from now on: {words(error)}")


def _during(original: _T, during: Callable[..., AbstractContextManager[None]]) -> _T:
    """Returns a call in a context that gets its arguments."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with during(*args, **kwargs):
            return original(*args, **kwargs)

    return cast("_T", call)


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """Calls on tensors reach torch alone: vLLM's parameters pass each call through Python, which takes three times as long."""
    with torch.no_grad(), _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        yield
