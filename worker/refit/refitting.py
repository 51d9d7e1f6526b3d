"""The driver's side of a refit: pause, update, resume, and never half-new weights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError, words
from quirks_core.base.text import listed
from quirks_core.configuration.sections import RefitSection
from quirks_core.ledger.account import Account, Entry, Verdict
from quirks_core.plan.records import Plan
from worker.engine import vllm_adapter
from worker.engine.engine import REFITS, Engine
from worker.engine.serial_lock import SerialLock
from worker.errors import EngineDiedError, RefitError, RefitRejectedError, TransferError, WorkerCallError
from worker.refit.advice import kind_of, unchanged, way_back, with_counts
from worker.refit.engine import ledger, receiving
from worker.refit.engine.transfer import BACKEND
from worker.refit.sending import ModelSender
from worker.refit.transport.channel import socket_path
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.scope import RefitScope

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")
#: Has the engine take weights, and on demand zeroes its KV cache; returns what each process answered, and the weights' label,
#: or None if no weights came.
_Take = Callable[[], Coroutine[Any, Any, "tuple[list[dict[str, Any]], str | None] | None"]]


@dataclass(frozen=True, slots=True)
class RefitReport:
    """Which way the trainer's tensors went, in all processes of an engine.

    Attributes:
        version: Label of the weights.
        copied: How many tensors were copied straight into the model, as recorded at an earlier refit.
        reloaded: How many went through vLLM's layerwise reload.
        layers: The layers for which they did, while others were copied.
        unloaded: Parameters of the model that got no value.
        by_pieces: Whether each process received only what it holds, from the trainer's ranks that hold it.
        not_finite: How many values of a tensor are NaN or infinite, by the names of those that have any (``refit.finite``).
        entries: What each process of the engine has in its ledger of the refit; empty if ``MODEL_QUIRKS_LEDGER=off``.
        verdicts: What the ledger found wrong with the weights as they are now.
    """

    version: str
    copied: int
    reloaded: int
    layers: tuple[str, ...]
    unloaded: tuple[str, ...]
    by_pieces: bool
    not_finite: Mapping[str, int]
    entries: tuple[Entry, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @classmethod
    def of(cls, version: str, answers: Sequence[dict[str, Any]], accounts: Sequence[Account]) -> Self:
        """Puts together what each process answered."""
        names = {key: tuple(sorted({name for answer in answers for name in answer[key]})) for key in ("layers", "unloaded")}
        copied, reloaded = (how(answer[way] for answer in answers) for how, way in ((min, "copied"), (max, "reloaded")))
        not_finite: dict[str, int] = {}
        for answer in answers:  # of a tensor that is split, each process sees a part
            not_finite |= {name: max(count, not_finite.get(name, 0)) for name, count in answer["not_finite"].items()}
        entries = tuple(entry for account in accounts for entry in account.entries)
        verdicts = tuple(verdict for account in accounts for verdict in account.problems)
        by_pieces = all(answer.get("by_pieces", False) for answer in answers)
        return cls(
            version, copied, reloaded, **names, by_pieces=by_pieces, not_finite=not_finite, entries=entries, verdicts=verdicts
        )

    def __str__(self) -> str:
        return f"{self.version!r}: {self.copied} tensors copied, {self.reloaded} through vLLM's reload"


class Refitting:
    """Refits of one engine, one at a time.

    Attributes:
        announced: What a trainer announced; None if it announced nothing.
        report: What the last refit did; None before one.
        sender: Sends models of this process; its section decides how weights are transferred in any case.
        lock: Held while a refit, a pause, a resume, sleep or waking is under way: half of a refit would cost the engine, and a
            resume must not come in the middle of one.
        sockets: Folder of the processes' sockets; None before the first request for one.
        joined: Whether the engine's processes are in a group with a trainer.
        backend: Which of vLLM's weight-transfer engines the processes have; ``none`` without one.
        last: How weights came last: ``ipc_zmq``, ``collective``, or ``http`` by calls for each step.
        dummy: Whether the engine started from dummy weights.
    """

    #: Address of the connection between this process' own sender and its engine.
    address = "127.0.0.1"

    def __init__(
        self,
        engine: Engine,
        section: RefitSection,
        plan: Plan,
        devices: list[str],
        abort: Callable[[str], None],
        warn: Callable[..., None],
    ) -> None:
        """Keeps what every refit needs.

        Args:
            engine: The engine, whose readiness a refit changes.
            section: How weights are transferred.
            plan: What a refit sends, and whether it drops the KV cache.
            devices: The device of every process of the engine.
            abort: Ends the worker's own requests, with a reason.
            warn: Warns the user; a repeated message may come again.
        """
        self.announced: Manifest | None = None
        self.report: RefitReport | None = None
        self.sender = ModelSender(self, section, plan.value("refit.scope"))
        self.lock = SerialLock()
        self.sockets: Path | None = None
        self.joined = False
        self.last = "ipc_zmq"
        self.dummy = plan.value("engine.load_format") == "dummy"
        self._engine = engine
        config = engine.llm.vllm_config.weight_transfer_config
        self.backend = "none" if config is None else str(config.backend)
        self._clear_cache = bool(plan.value("refit.clear_cache"))
        self._keep_memory = not plan.value("engine.enable_sleep_mode")
        self._abort = abort
        self._warn = warn
        self._ranks: list[int] | None = None
        self._devices = devices

    # ---- from a trainer elsewhere

    async def addresses(self) -> list[str]:
        """Returns where each process of the engine listens, in the order of their ranks."""
        self._check_backend()
        folder = self._socket_folder()
        if self._ranks is None:
            self._ranks = sorted(await self._engine.call(receiving.rank))
        return [str(socket_path(folder, rank)) for rank in self._ranks]

    async def join(self, rank_prefix: int, ip: str, port: int, world_size: int, train_world_size: int) -> None:
        """Has every process of the engine join the trainer's group."""
        self._check_backend()
        engine_ranks = world_size - train_world_size - rank_prefix
        if rank_prefix < 0 or train_world_size < 1 or engine_ranks < 1:
            raise RefitError(
                f"init_collective_async: world_size = {world_size} leaves no rank for this engine after train_world_size = "
                f"{train_world_size} (at least 1) and rank_prefix = {rank_prefix} (at least 0)"
            )
        await self.lock.run(lambda: self._join(train_world_size + rank_prefix, ip, port, world_size))

    async def receive(self, transport: str, version: str | None, clear_cache: bool | None) -> bool:
        """Takes new weights over the processes' sockets (``ipc_zmq``) or from the group (``collective``)."""
        self._check_backend()
        if transport == "collective" and not self.joined:
            raise RefitError("no collective was joined; call init_collective_async, while the trainer opens a CollectiveSender")
        await self.lock.run(lambda: self.update(self._once(self._info(transport), version), clear_cache))
        return True

    # ---- from a model in this process

    async def from_model(
        self, model: torch.nn.Module, scope: RefitScope | str | None, *, version: str | None, clear_cache: bool | None
    ) -> None:
        """Sends a model by the configured transport."""
        await self.lock.run(lambda: self._send(model, scope, lambda info: self.update(self._once(info, version), clear_cache)))

    async def verify(self, model: torch.nn.Module | None, scope: RefitScope | str | None) -> dict[str, str]:
        """Has every process compare its weights with those that the trainer sends once more; generation waits meanwhile.

        Returns:
            What differs, by tensor; with several processes the name ends in the process' place.
        """
        if model is not None:
            return await self.lock.run(lambda: self._send(model, scope, self._compare))
        if self.last == "http":
            raise RefitError("verify_refit_async: the last refit came over HTTP; pass the trainer's model")
        return await self.lock.run(lambda: self._compare(self._info(self.last)))

    async def report_updates(self, updates: int) -> tuple[Verdict, ...]:
        """Reports how many updates the trainer has made; returns what the ledger finds wrong with the weights."""
        found = await self._engine.call(ledger.trainer_at, updates)
        return tuple(verdict for one in found if one is not None for verdict in Account.model_validate(one).problems)

    async def between(self, call: Callable[..., Coroutine[Any, Any, _T]], *arguments: Any, **options: Any) -> _T:
        """Waits until no refit is under way, then makes a call with the engine's ``AsyncLLM``."""

        async def work() -> _T:
            async with self._engine.watched() as llm:
                return await call(llm, *arguments, **options)

        return await self.lock.run(work)

    async def devices(self) -> list[str]:
        """Returns the device of every process of the engine."""
        return self._devices

    async def join_sender(self, port: int, world_size: int) -> None:
        """Has every process of the engine join the group that this process opens."""
        await self._join(1, self.address, port, world_size)

    # ---- parts that steps of an update share (`worker.server.trainer_client`)

    async def update(self, take: _Take, clear_cache: bool | None) -> None:
        """Updates the weights; requests in flight wait, and go on under the new ones.

        Args:
            take: Has the engine take weights.
            clear_cache: Drop the KV cache; None as planned.
        """
        readiness = self._engine.readiness
        readiness.check_refit()
        clear_cache = self._clear_cache if clear_cache is None else clear_cache
        async with self.paused(clear_cache=clear_cache):
            try:
                if (taken := await take()) is None:
                    return
                answers, version = taken
                label = version if version is not None else readiness.next_version()
                async with self._engine.watched() as llm:
                    await vllm_adapter.label_weights(llm, label)
            except EngineDiedError:
                raise
            except Exception as error:
                raise await self._failure(error) from error
            found = await self._engine.call(ledger.account)
            accounts = [Account.model_validate(one) for one in found if one is not None]
            readiness.refitted(label)
            self.report = RefitReport.of(label, answers, accounts)
            if refusals := [account.refusal for account in accounts if account.refusal]:
                readiness.broken(refusals[0])
            self._warn_of(self.report)

    @asynccontextmanager
    async def paused(self, *, clear_cache: bool) -> AsyncIterator[None]:
        """Nothing is generated meanwhile; an engine that died cannot be resumed."""
        async with self._engine.watched() as llm:
            still = await llm.is_paused()
        try:
            async with self._engine.watched() as llm:
                await vllm_adapter.hold(llm, clear_cache=clear_cache)
            yield
        finally:
            if self._engine.alive and not still:
                async with self._engine.watched() as llm:
                    await llm.resume_generation()

    # ---- end

    async def forget(self, *, plan: bool = False) -> None:
        """Has every process of the engine close the trainer's memory, so that the trainer can free it.

        Args:
            plan: Record the next refit again.
        """
        await self._engine.call(receiving.forget, plan)

    def give_up(self) -> None:
        """Has the engine wait for no trainer any more: it waits as long as the sockets' folder is there."""
        if self.sockets is not None:
            private_folder.remove(self.sockets)

    async def close(self) -> None:
        """Waits for the refit that still runs, and leaves the collective; the engine has stopped."""
        async with self.lock:
            self._leave()

    # ---- parts

    def _check_backend(self) -> None:
        if self.backend != BACKEND:
            raise RefitError(
                f"the engine takes weights by the backend {self.backend!r} (engine.weight_transfer_config): its trainer calls "
                f"server.rl_routes; leave that setting out, or name {BACKEND!r}, for refits by the worker's methods"
            )

    async def _send(
        self,
        model: torch.nn.Module,
        scope: RefitScope | str | None,
        take: Callable[[dict[str, Any]], Coroutine[Any, Any, _T]],
    ) -> _T:
        """Sends a model of this process while the engine takes the weights, whatever it does with them."""
        self._check_backend()
        self._engine.readiness.check_refit()
        transport = self.sender.section.transport
        return await self.sender.send(model, scope, lambda: take(self._info(transport)), self.announced)

    async def _join(self, rank_offset: int, ip: str, port: int, world_size: int) -> None:
        self._leave()
        init = {
            "ip": ip,
            "port": port,
            "rank_offset": rank_offset,
            "world_size": world_size,
            "timeout_s": self.sender.section.timeout_s,
        }
        # A rank that joins takes no step, and a rank in lock-step with it that still takes one waits for it: neither gets on.
        async with self.paused(clear_cache=False):
            try:
                await self._engine.call(receiving.join, init)
            except (RefitError, WorkerCallError) as error:
                raise TransferError(str(error)) from error
        self.joined = True

    def _leave(self) -> None:
        self.joined = False
        self.sender.leave()

    def _once(self, info: dict[str, Any], version: str | None) -> _Take:
        """Returns what takes all weights in one call."""

        async def take() -> tuple[list[dict[str, Any]], str | None]:
            self.last = info["transport"]
            return await self._engine.call(receiving.take, info), version

        return take

    async def _compare(self, info: dict[str, Any]) -> dict[str, str]:
        self._engine.readiness.check_refit()
        async with self.paused(clear_cache=False):
            try:
                found = await self._engine.call(receiving.verify, info)
            except EngineDiedError:
                raise
            except Exception as error:
                self._note_step(error)
                raise RefitError(f"verify_refit_async: {_reason(error)}; the engine's weights are as they were") from error
        if len(found) == 1:
            return found[0]
        return {f"{name} on worker {place}": problem for place, one in enumerate(found) for name, problem in one.items()}

    async def _failure(self, error: Exception) -> RefitError:
        """Finds out what a failed refit has left behind, and closes the engine to requests if it is not whole."""
        self._note_step(error)
        readiness = self._engine.readiness
        kind = kind_of(error)
        try:
            is_touched = any(await self._engine.call(receiving.touched))
        except EngineDiedError:
            raise
        except Exception:
            is_touched = True  # no reply
        if not is_touched:
            state = unchanged(kind, version=readiness.version, problem=readiness.problem, dummy=self.dummy)
            return kind(f"{_reason(error)}; {state}")
        why = f"a refit failed half-way ({_reason(error)}); {way_back(kind, dummy=self.dummy)}"
        readiness.broken(why)
        self._abort(why)
        async with self._engine.watched() as llm:
            # Pausing with mode "abort" would do so too, but ranks of one data-parallel group agree on a pause.
            await llm.abort(list(llm.output_processor.request_states), internal=True)
        return kind(why)

    def _note_step(self, error: Exception) -> None:
        """After a failed collective the group must be rejoined; a rejection leaves all ranks in step."""
        if self.last == "collective" and not isinstance(error, RefitRejectedError):
            self.joined = False

    def _warn_of(self, report: RefitReport) -> None:
        if report.not_finite:
            found = with_counts(report.not_finite)
            self._warn(f"the weights {report.version!r} are not finite: {found}; refit.finite: true refuses such weights")
        if unreached := report.unloaded:
            self._warn(
                f"refits do not reach {listed(unreached)} ({len(unreached)} parameters in all); they keep the values they had"
            )
        self._warn(*(verdict.text for verdict in report.verdicts if verdict.is_grave))

    def _info(self, transport: str) -> dict[str, Any]:
        return {
            "transport": transport,
            "location": str(self._socket_folder()) if transport == "ipc_zmq" else "",
            "manifest": self.announced.encode() if self.announced is not None else None,
            "dummy": self.dummy,
            "timeout_s": self.sender.section.timeout_s,
            "verify_every": self.sender.section.verify_every,
            "keep_memory": self._keep_memory,
            "finite": self.sender.section.finite,
        }

    def _socket_folder(self) -> Path:
        """Makes a folder that no other user can enter."""
        if self.sockets is None:
            self.sockets = private_folder.make(REFITS)  # a short name: a socket's path has at most 107 bytes
        return self.sockets


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, QuirksError) else words(error)
