"""The running engines of a group: watches them, calls them together, distributes prompts, and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from quirks_core.base.errors import QuirksError
from worker.errors import GenerationAbortedError, GenerationTimeoutError, RankError
from worker.group.ranks import Rank

_T = TypeVar("_T")
#: An engine has yielded its last sample.
_END = object()


class ActorSet:
    """Engines that were started together and can only be used together.

    Attributes:
        ranks: The driver's handles of the engines.
        in_flight: Requests of every engine.
    """

    def __init__(self, ranks: Sequence[Rank], follow_s: float) -> None:
        """Starts to watch running engines; after one has failed, the others get `follow_s` to finish a common call."""
        self.ranks = tuple(ranks)
        self.in_flight = [0] * len(self.ranks)
        self._follow_s = follow_s
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching = [asyncio.ensure_future(self._watch(rank)) for rank in self.ranks]

    @property
    def problem(self) -> str | None:
        """Why the engines can no longer be used; None if they can."""
        return str(self._failure.exception()) if self._failure.done() else None

    def check(self) -> None:
        """Makes sure that every engine lives.

        Raises:
            RankError: One died.
        """
        if self._failure.done():
            self._failure.result()

    async def disband(self, why: str) -> None:
        """Ends every wait and stops watching; the engines are left as they are."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._fail(GenerationAbortedError(why))

    async def everybody(self, method: str, *arguments: Any, each: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Calls a method of every worker at the same time; returns what each returned, in the order of the ranks.

        Arguments are the same for all, but for those in `each`, which has a row for each worker.

        Raises:
            RankError: An engine died, or does not follow although another has failed.
            QuirksError: The first error of those that failed.
        """
        found = await self.outcomes(method, *arguments, each=each)
        for item in found:
            if isinstance(item, BaseException):
                raise item
        return found

    async def outcomes(self, method: str, *arguments: Any, each: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """As `everybody`, but returns errors instead of raising one."""
        given = each or [arguments] * len(self.ranks)
        calls = [asyncio.ensure_future(rank.call("call", method, *own)) for rank, own in zip(self.ranks, given, strict=True)]
        try:
            await self.alive(asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION))
            # If one engine fails before the others, these may wait for it forever.
            await self.alive(asyncio.wait(calls, timeout=self._follow_s))
            if waiting := [number for number, call in enumerate(calls) if not call.done()]:
                failed = next(call.exception() for call in calls if call.done() and call.exception() is not None)
                left = ", ".join(map(str, waiting))
                self._fail(RankError(f"rank {left} did not follow when {method} failed: {failed}; call restart"))
                self.check()
            return [call.exception() or call.result() for call in calls]
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def generate(
        self, kind: str, rows: Sequence[list[int]], rank: int | None, *arguments: Any, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Distributes prompts and yields the results of all engines as they finish; leaving early aborts the rest everywhere.

        Each goes to the engine with the fewest requests, or all of them to one data-parallel rank: a rank within the engine if
        there is only one engine. Further arguments are those of `worker.group.actor.EngineActor.stream`.
        """
        alone = len(self.ranks) == 1
        shares: dict[int, dict[int, list[int]]] = {}
        for index, row in enumerate(rows):
            chosen = self.in_flight.index(min(self.in_flight)) if alone or rank is None else rank
            self.in_flight[chosen] += 1
            shares.setdefault(chosen, {})[index] = row
        coming: asyncio.Queue[Any] = asyncio.Queue()
        late: list[str] = []

        async def follow(number: int, share: dict[int, list[int]]) -> None:
            left = len(share)
            try:
                stream = self.ranks[number].stream(kind, share, rank if alone else None, *arguments, **options)
                async with aclosing(stream) as items:
                    async for item in items:
                        left -= 1
                        self.in_flight[number] -= 1
                        coming.put_nowait(item)
            except GenerationTimeoutError as error:  # the other engines go on
                late.append(str(error))
            except Exception as error:
                coming.put_nowait(error)
            finally:
                self.in_flight[number] -= left
                coming.put_nowait(_END)

        following = [asyncio.ensure_future(follow(number, share)) for number, share in shares.items()]
        try:
            for _ in following:
                while (item := await self.alive(coming.get())) is not _END:
                    if isinstance(item, Exception):
                        raise item
                    yield item
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        if late:
            raise GenerationTimeoutError("; ".join(late))

    async def alive(self, work: Awaitable[_T]) -> _T:
        """Waits for something as long as every engine lives.

        Raises:
            RankError: One died.
            GenerationAbortedError: The group was stopped.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._failure), return_when=asyncio.FIRST_COMPLETED)
            self.check()
            return await task
        finally:
            task.cancel()

    async def _watch(self, rank: Rank) -> None:
        """Waits for the end of an engine, which is the end of the group."""
        try:
            await rank.call("death")
        except QuirksError as error:
            self._fail(error)

    def _fail(self, error: QuirksError) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # marks the error as retrieved: no task may be waiting for it
