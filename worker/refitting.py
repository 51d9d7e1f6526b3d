"""The driver's side of a refit: pause, update, resume, and never half-new weights."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quirks_core.plan import Plan
from worker import vllm_adapter
from worker.config import RefitSection
from worker.engine import Engine
from worker.errors import EngineDiedError, RefitError, RefitRejectedError, TransferError
from worker.refit import sending
from worker.refit.manifest import Manifest
from worker.refit.scope import RefitScope, gathered, layout
from worker.turns import Turns

if TYPE_CHECKING:
    import torch

    from worker.refit.collective import CollectiveSender

#: Where this process' own sender and its engine meet.
_LOOPBACK = "127.0.0.1"
#: The word by which a rejected manifest is known on this side of the engine.
_REJECTED = "rejected"

_T = TypeVar("_T")


class Refitting:
    """Refits of one engine, one at a time.

    Attributes:
        announced: What a trainer said it would send; None if it said nothing.
    """

    def __init__(
        self,
        engine: Engine,
        section: RefitSection,
        plan: Plan,
        abort: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        """Keeps what every refit needs.

        Args:
            engine: The engine, whose readiness a refit changes.
            section: How weights are transferred.
            plan: What a refit sends, and whether it drops the KV cache.
            abort: Ends the worker's own requests, with a reason.
            warn: Tells the user something; may be told the same again.
        """
        self.announced: Manifest | None = None
        self._engine = engine
        self._section = section
        self._scope = RefitScope(plan.value("refit.scope"))
        self._clear_cache = bool(plan.value("refit.clear_cache"))
        self._dummy = plan.value("engine.load_format") == "dummy"
        self._abort = abort
        self._warn = warn
        self._turns = Turns()  # half a refit would cost the engine
        self._sockets: Path | None = None
        self._sender: CollectiveSender | None = None
        self._joined = False
        self._last = "ipc_zmq"

    # ---- from a trainer elsewhere

    async def addresses(self) -> list[str]:
        """Returns where each process of the engine listens, in the order of their ranks."""
        from worker.refit.addresses import socket_path

        folder = self._socket_folder()
        return [str(socket_path(folder, rank)) for rank in sorted(await self._ask(vllm_adapter.ranks))]

    async def join(self, rank_prefix: int, ip: str, port: int, world_size: int, train_world_size: int) -> None:
        """Has every process of the engine join the trainer's group."""
        engine_ranks = world_size - train_world_size - rank_prefix
        if rank_prefix < 0 or train_world_size < 1 or engine_ranks < 1:
            raise RefitError(
                f"init_collective_async: world_size = {world_size} leaves no rank for this engine after train_world_size = "
                f"{train_world_size} (at least 1) and rank_prefix = {rank_prefix} (at least 0)"
            )
        await self._turns.take(lambda: self._join(train_world_size + rank_prefix, ip, port, world_size))

    async def by_ipc_zmq(self, *, version: str | None, clear_cache: bool | None) -> bool:
        """Takes new weights over the processes' sockets."""
        await self._turns.take(lambda: self._update(self._info("ipc_zmq", None), version, clear_cache))
        return True

    async def by_collective(self, *, version: str | None, clear_cache: bool | None) -> bool:
        """Takes new weights from the group."""
        if not self._joined:
            raise RefitError("no collective was joined; call init_collective_async, while the trainer opens a CollectiveSender")
        await self._turns.take(lambda: self._update(self._info("collective", None), version, clear_cache))
        return True

    # ---- from a model in this process

    async def from_model(
        self, model: torch.nn.Module, scope: RefitScope | str | None, *, version: str | None, clear_cache: bool | None
    ) -> None:
        """Sends a model by the configured transport."""
        await self._turns.take(lambda: self._send(model, scope, lambda info: self._update(info, version, clear_cache)))

    async def verify(self, model: torch.nn.Module | None, scope: RefitScope | str | None) -> dict[str, str]:
        """Has every process compare its weights with those that the trainer sends once more; generation waits meanwhile.

        Returns:
            What differs, by tensor; with several processes the name ends in the process' place.
        """
        if model is None:
            if self._last == "file":
                raise RefitError("verify_refit_async: the last refit came from a model of this process; pass that model")
            return await self._turns.take(lambda: self._compare(self._info(self._last, None)))
        return await self._turns.take(lambda: self._send(model, scope, self._compare))

    def give_up(self) -> None:
        """Has the engine wait for no trainer any more: it waits as long as the sockets' folder is there."""
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    async def close(self) -> None:
        """Waits for the refit that still runs, and leaves the collective; the engine has stopped."""
        await self._turns.ended()
        self._drop_sender()

    # ---- parts

    async def _ask(self, question: Callable[..., Coroutine[Any, Any, _T]], *arguments: Any) -> _T:
        """Asks the engine something; its death ends the wait."""
        async with self._engine.watched() as llm:
            return await question(llm, *arguments)

    async def _send(
        self,
        model: torch.nn.Module,
        scope: RefitScope | str | None,
        update: Callable[[dict[str, Any]], Coroutine[Any, Any, _T]],
    ) -> _T:
        """Sends a model of this process while the engine updates, or whatever else it does with the weights."""
        self._engine.readiness.check_refit()
        wanted = self._scope if scope is None else RefitScope(scope)

        state = await asyncio.to_thread(layout, model, wanted)  # while the engine still generates

        def source() -> Iterable[tuple[str, torch.Tensor]]:
            return gathered(state)

        manifest = Manifest.of(state.items())
        manifest.check(self.announced)  # before anybody waits for it
        transport = self._section.transport
        info = self._info(transport, manifest)
        if transport == "file":
            return await sending.by_file(source, lambda path: update({**info, "location": path}))
        common: dict[str, Any] = {"manifest": manifest, "buffer_bytes": self._section.buffer_mb << 20}
        if transport == "collective":
            sender = await self._own_sender(model)
            return await sending.alongside(lambda _: sender.send(source, **common), update(info))
        from worker.refit.ipc_zmq import send

        device = sending.shared_device(model, await self._ask(vllm_adapter.device_ids))
        addresses = await self.addresses()
        common |= {"device": device, "timeout_s": self._section.timeout_s}
        return await sending.alongside(lambda given_up: send(source, addresses, given_up=given_up, **common), update(info))

    async def _own_sender(self, model: torch.nn.Module) -> CollectiveSender:
        """Opens a group of this process and its engine, once."""
        if self._sender is None or not self._joined:
            size = 1 + len(await self._ask(vllm_adapter.ranks))
            self._sender = await sending.open_collective(
                _LOOPBACK,
                size,
                lambda port: self._join(1, _LOOPBACK, port, size),
                model=model,
                engine=await self._ask(vllm_adapter.device_ids),
                timeout_s=self._section.timeout_s,
            )
        return self._sender

    async def _join(self, rank_offset: int, ip: str, port: int, world_size: int) -> None:
        self._drop_sender()
        init = {
            "ip": ip,
            "port": port,
            "rank_offset": rank_offset,
            "world_size": world_size,
            "timeout_s": self._section.timeout_s,
        }
        try:
            await self._ask(vllm_adapter.join_collective, init)
        except EngineDiedError:
            raise
        except Exception as error:
            raise TransferError(vllm_adapter.remote_reason(error)) from error
        self._joined = True

    def _drop_sender(self) -> None:
        self._joined = False
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    async def _update(self, info: dict[str, Any], version: str | None, clear_cache: bool | None) -> None:
        """Updates the weights; requests in flight wait, and go on under the new ones."""
        readiness = self._engine.readiness
        readiness.check_refit()
        self._last = info["transport"]
        label = version if version is not None else readiness.next_version()
        async with self._paused(clear_cache=self._clear_cache if clear_cache is None else clear_cache):
            try:
                await self._ask(vllm_adapter.update_weights, info, label)
            except EngineDiedError:
                raise
            except Exception as error:
                raise await self._failure(error) from error
            readiness.refitted(label)
            await self._note_unloaded()

    async def _compare(self, info: dict[str, Any]) -> dict[str, str]:
        self._engine.readiness.check_refit()
        async with self._paused(clear_cache=False):
            try:
                found = await self._ask(vllm_adapter.verify_refit, info)
            except EngineDiedError:
                raise
            except Exception as error:
                reason = vllm_adapter.remote_reason(error)
                self._leave_broken_collective(reason)
                raise RefitError(f"verify_refit_async: {reason}; the engine's weights are as they were") from error
        if len(found) == 1:
            return found[0]
        return {f"{name} on worker {place}": problem for place, one in enumerate(found) for name, problem in one.items()}

    @asynccontextmanager
    async def _paused(self, *, clear_cache: bool) -> AsyncIterator[None]:
        """Nothing is generated meanwhile; an engine that died cannot be resumed."""
        async with self._engine.watched() as llm:
            still = await vllm_adapter.is_paused(llm)
            await vllm_adapter.pause(llm, clear_cache=clear_cache)
        try:
            yield
        finally:
            if self._engine.alive and not still:
                await self._ask(vllm_adapter.resume)

    async def _failure(self, error: Exception) -> RefitError:
        """Finds out what a failed refit has left behind, and closes the engine to requests if it is not whole."""
        reason = vllm_adapter.remote_reason(error)
        self._leave_broken_collective(reason)
        try:
            touched = any(report["touched"] for report in await self._ask(vllm_adapter.refit_reports))
        except EngineDiedError:
            raise
        except Exception:
            touched = True  # nobody answers
        readiness = self._engine.readiness
        if not touched:
            kind = RefitRejectedError if _REJECTED in reason else RefitError
            return kind(f"{reason}; the engine goes on with the weights it had (version {readiness.version!r})")
        why = f"a refit failed half-way ({reason}); refit once more, completely, or call restart_async"
        readiness.broken(why)
        self._abort(why)
        await self._ask(vllm_adapter.abort_all)
        return RefitError(why)

    def _leave_broken_collective(self, reason: str) -> None:
        """A rank that failed is not in step with the others any more; one that rejected a refit is."""
        if self._last == "collective" and _REJECTED not in reason:
            self._joined = False

    async def _note_unloaded(self) -> None:
        """Says which of the engine's parameters a refit leaves as they were."""
        left = sorted({name for report in await self._ask(vllm_adapter.refit_reports) for name in report["unloaded"]})
        if left:
            self._warn(
                f"refits do not reach {', '.join(left[:8])} ({len(left)} parameters in all); they keep the values they had"
            )

    def _info(self, transport: str, manifest: Manifest | None) -> dict[str, Any]:
        announced = manifest or self.announced
        return {
            "transport": transport,
            "location": str(self._socket_folder()) if transport == "ipc_zmq" else "",
            "manifest": announced.encode() if announced is not None else None,
            "dummy": self._dummy,
            "timeout_s": self._section.timeout_s,
        }

    def _socket_folder(self) -> Path:
        if self._sockets is None:
            self._sockets = _private_folder(self._section.socket_dir)
        return self._sockets


def _private_folder(parent: str | None) -> Path:
    """Makes a folder that nobody else can enter.

    Raises:
        TransferError: The folder that was asked for is another user's, or open to others.
    """
    if parent is not None:
        folder = Path(parent)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise TransferError(f"refit.socket_dir {parent!r} must be this user's and closed to others: chmod 700 {parent}")
    return Path(tempfile.mkdtemp(prefix="mq-", dir=parent))  # short: a socket's path has at most 107 bytes
