"""The calls by which a trainer gives weights: the same for one worker and for a group of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from worker.refit.weights.scope import RefitScope


class _Refits(Protocol):
    """Refits of an engine (`worker.refit.refitting.Refitting`), or of several (`worker.group.refits.GroupRefits`)."""

    async def addresses(self) -> list[str]: ...
    async def receive(self, transport: str, version: str | None, clear_cache: bool | None) -> bool: ...
    async def from_model(self, model: Any, scope: Any, *, version: str | None, clear_cache: bool | None) -> None: ...


class RefitCalls(ABC):
    """Every engine of a group takes the same weights; after a refit that failed on some of them, none generates."""

    @property
    @abstractmethod
    def _refits(self) -> _Refits: ...

    async def report_refit_addresses_async(self) -> list[str]:
        """Returns the path of every engine process' socket, in the order of their ranks; a sender connects to all of them."""
        return await self._refits.addresses()

    async def update_weights_via_ipc_zmq_async(self, version: str | None = None, clear_cache: bool | None = None) -> bool:
        """Takes new weights from trainers that run `worker.refit.send_ipc_zmq` on this machine.

        Generation pauses meanwhile; requests in flight are kept and continue with the new weights.

        Args:
            version: Label of the new weights; a running number if None.
            clear_cache: Drop the KV cache, so that requests in flight are recomputed; ``refit.clear_cache`` if None.

        Returns:
            True.

        Raises:
            RefitRejectedError: The tensors differ from the announcement; the engine keeps the weights it had.
            RefitError: The transfer failed; the message says whether the engine still has the weights it had. If not, it does
                not generate until a complete refit or `restart_async`.
            EngineDiedError: A process of the engine died.
        """
        return await self._refits.receive("ipc_zmq", version, clear_cache)

    async def update_weights_from_collective_async(self, version: str | None = None, clear_cache: bool | None = None) -> bool:
        """Takes new weights from the group; arguments, result and errors as for `update_weights_via_ipc_zmq_async`."""
        return await self._refits.receive("collective", version, clear_cache)

    async def refit_async(
        self,
        model: torch.nn.Module,
        scope: RefitScope | str | None = None,
        *,
        version: str | None = None,
        clear_cache: bool | None = None,
    ) -> None:
        """Gives the engine the weights of a model in this process, by ``refit.transport``.

        Args:
            model: The trainer's model, with a checkpoint's names.
            scope: What to send; the plan's ``refit.scope`` if None.
            version: Label of the new weights; a running number if None.
            clear_cache: As for `update_weights_via_ipc_zmq_async`.

        Raises:
            RefitRejectedError, RefitError, EngineDiedError: As for `update_weights_via_ipc_zmq_async`.
        """
        await self._refits.from_model(model, scope, version=version, clear_cache=clear_cache)
