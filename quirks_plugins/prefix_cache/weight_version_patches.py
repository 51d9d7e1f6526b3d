"""The functions that ``prefix-cache-after-update`` and ``lora-reload-cache`` put into vLLM.

vLLM finds cached blocks by the request's tokens and by its ``cache_salt``. These wrappers add the number of the weights, or of
the adapter, to the salt of each request that comes after an update. Blocks of older weights are then never found by it, and no
block has to be given up. A request that already has blocks keeps its salt. One that waits is hashed when its hashes are read,
because a thousand that wait would hold up the engine: until then it lacks the attribute, and has a class with ``__getattr__``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    import torch

_ATTRIBUTE = "_model_quirks_weights"
_OUTDATED = "_model_quirks_outdated_hashes"
#: Between the salt of the client and ours.
_SEPARATOR = "\x1f"
#: Worker methods after which the weights are others; `loads` does not count writes into the model's tensors themselves.
_FINISH, _RELOAD = "finish_weight_update", "reload_weights"
#: Whether it is the draft's weights that ``finish_weight_update`` will have changed, by the method that began the update.
_OF_DRAFT = {"start_weight_update": False, "start_draft_weight_update": True}
#: Our own worker's call that takes new weights.
_OUR_UPDATE = "worker.refit.engine.receiving:take"

_loads = 0


@dataclass(slots=True)
class _Weights:
    """What an engine core knows about its weights.

    Attributes:
        engine: Distinguishes the engines that share a store of blocks, one that is started again too.
        updates: Number of updates of the model.
        of_draft: The last update that began is one of the draft, whose weights no block of the model depends on.
        local: `loads` of this process at the last one.
        everywhere: The sum of `loads` over all workers at the last one.
        first: The id under which an adapter's name was first used.
        reloads: How often an adapter was loaded again, by name and id.
        has_old_images: The encoder cache holds embeddings of older weights.
    """

    engine: str = field(default_factory=lambda: uuid4().hex)
    updates: int = 0
    of_draft: bool = False
    local: int = 0
    everywhere: int = 0
    first: dict[str, int] = field(default_factory=dict)
    reloads: Counter[tuple[str, int]] = field(default_factory=Counter)
    has_old_images: bool = False

    def salt(self, adapter: Any) -> str:
        """Names the weights that a request is computed with; empty as long as nothing was updated."""
        found = f"weights {self.updates}" if self.updates else ""
        if adapter is not None:
            name, number = adapter.lora_name, adapter.lora_int_id
            again = self.reloads[name, number]
            if again or self.first.get(name, number) != number:
                found += f" adapter {number}.{again}"
        return f"{self.engine} {found}" if found else ""


def loads(worker: Any = None) -> int:  # noqa: ARG001 - vLLM's ``collective_rpc`` gives it
    """Returns how often weights were loaded into a model of this process after its start."""
    return _loads


def wrap_load_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make every call of a running model's ``load_weights`` count, if the model is no draft."""

    @wraps(original)
    def load_model(self: Any, vllm_config: Any, model_config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        model = original(self, vllm_config, model_config, *args, **kwargs)
        load = getattr(model, "load_weights", None)
        if load is not None and model_config.runner_type != "draft":

            @wraps(load)
            def load_weights(*given: Any, **named: Any) -> Any:
                global _loads
                _loads += 1
                return load(*given, **named)

            model.load_weights = load_weights
        return model

    return load_model


def wrap_collective_rpc(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Make an engine core notice that a call has changed its workers' weights."""

    @wraps(original)
    def collective_rpc(self: Any, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None) -> list[Any]:
        answers = original(self, method, timeout, args, kwargs)
        weights, everywhere = _of(self), sum(self.model_executor.collective_rpc(loads))
        weights.of_draft = _OF_DRAFT.get(method, weights.of_draft)
        finished = method == _RELOAD or (method == _FINISH and not weights.of_draft)
        if finished or _OUR_UPDATE in tuple(args)[:1] or everywhere != weights.everywhere:
            weights.everywhere = everywhere
            _updated(self)
        return answers

    return collective_rpc


def wrap_add_lora(original: Callable[..., bool]) -> Callable[..., bool]:
    """Make an engine core notice that an adapter was loaded again under its name."""

    @wraps(original)
    def add_lora(self: Any, lora_request: Any) -> bool:
        name, number = lora_request.lora_name, lora_request.lora_int_id
        is_loaded = number in self.list_loras()
        answer = original(self, lora_request)
        if not is_loaded or lora_request.load_inplace:
            weights = _of(self)
            if name in weights.first:
                weights.reloads[name, number] += 1
            weights.first.setdefault(name, number)
            _salt_waiting(self)
        return answer

    return add_lora


def wrap_preprocess(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a request get its salt before its blocks are hashed; vLLM does that in a thread of its own."""

    @wraps(original)
    def preprocess_add_request(self: Any, request: Any) -> Any:
        request.cache_salt = _salted(request.cache_salt, _of(self).salt(request.lora_request))
        return original(self, request)

    return preprocess_add_request


def wrap_add_request(original: Callable[..., None]) -> Callable[..., None]:
    """Make a request that was hashed before the last update get its salt."""

    @wraps(original)
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        weights, adapter = _of(self), request.lora_request
        if weights.local != _loads:  # a program has loaded weights past the core, into a model of this process
            _updated(self)
        if weights.has_old_images:
            _drop_images(self)
        if adapter is not None:
            if adapter.load_inplace:
                weights.reloads[adapter.lora_name, adapter.lora_int_id] += 1
            weights.first.setdefault(adapter.lora_name, adapter.lora_int_id)
        _salt(request, weights)
        original(self, request, *args, **kwargs)

    return add_request


def _of(core: Any) -> _Weights:
    found: _Weights = vars(core).setdefault(_ATTRIBUTE, _Weights(local=_loads, everywhere=_loads))
    return found


def _updated(core: Any) -> None:
    weights = _of(core)
    weights.updates += 1
    weights.local = _loads
    weights.has_old_images = core.vllm_config.model_config.is_multimodal_model
    _salt_waiting(core)


def _drop_images(core: Any) -> None:
    """Drops the embeddings of images as soon as no request needs them."""
    if not core.scheduler.has_unfinished_requests():
        core.reset_encoder_cache()
        _of(core).has_old_images = False


def _salt_waiting(core: Any) -> None:
    """Gives the new salt to requests that have no blocks: those that wait, or were preempted."""
    requests: Iterable[Any] = core.scheduler.requests.values()
    for request in requests:
        if not request.num_computed_tokens:
            _salt(request, _of(core))


def _salt(request: Any, weights: _Weights) -> None:
    wanted = _salted(request.cache_salt, weights.salt(request.lora_request))
    if request.cache_salt != wanted:
        request.cache_salt = wanted
        if _OUTDATED not in vars(request):
            vars(request)[_OUTDATED] = vars(request).pop("block_hashes", None)
            kind: Any = type(request)
            request.__class__ = _without_hashes(kind)


@cache
def _without_hashes(kind: Any) -> Any:
    """Returns a class for requests without hashes.

    On the class of all requests ``__getattr__`` would make each access to an attribute 35 ns slower (CPython 3.11), of which a
    step of the scheduler has thousands; and CPython 3.13 is slow for good once a class has changed some hundred times.
    """

    def hash_when_read(self: Any, name: str) -> Any:
        if name != "block_hashes":
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        self.__class__ = kind
        self.block_hashes = vars(self).pop(_OUTDATED)
        self.block_hashes.clear()  # the same list: a KV connector may hold it
        self.update_block_hashes()
        return self.block_hashes

    return type(kind.__name__, (kind,), {"__getattr__": hash_when_read})


def _salted(salt: str | None, weights: str) -> str | None:
    base = (salt or "").partition(_SEPARATOR)[0]
    return f"{base}{_SEPARATOR}{weights}" if weights else base or None
