"""Waits for the engine's results of one request: with a time limit, an error for a dead engine, and no incomplete replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from worker.errors import GenerationTimeoutError
from worker.server.errors import RequestError


class Record:
    """What the engine generated for one request: token ids and their logprobs, by index of the choice.

    Attributes:
        failure: Why the request ended before its reply was complete; None if it did not.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._prompt: list[int] = []
        self._token_ids: dict[int, list[int]] = {}
        self._logprobs: dict[int, list[float]] = {}
        self._versions: dict[int, list[tuple[str, int, int]]] = {}

    @property
    def empty(self) -> bool:
        """Whether no token was generated."""
        return not any(self._token_ids.values())

    def add(self, result: Any) -> None:
        """Notes one of vLLM's ``RequestOutput``s: the whole of the generation, or the next piece of it."""
        self._prompt = list(result.prompt_token_ids or self._prompt)
        for output in result.outputs:
            self._token_ids.setdefault(output.index, []).extend(output.token_ids)
            logprobs = self._logprobs.setdefault(output.index, [])
            for token, entry in zip(output.token_ids, output.logprobs or (), strict=False):
                logprobs.append(max(entry[token].logprob, -9999.0))  # vLLM's own lowest: JSON has no infinity
            if spans := getattr(output, "weight_versions", None):  # from vLLM 0.32 on, with the last piece
                self._versions[output.index] = [(span.version, span.start, span.end) for span in spans]

    def check(self) -> None:
        """Raises the failure, if there is one."""
        if self.failure is not None:
            raise self.failure

    def carried(self, index: int, routed_experts: str | None = None) -> dict[str, Any]:
        """Returns the fields of one choice's message.

        Args:
            index: The choice.
            routed_experts: vLLM's base64 text of the experts that each token went to, if it made one.
        """
        fields: dict[str, Any] = {
            "prompt_token_ids": self._prompt,
            "generation_token_ids": self._token_ids.get(index, []),
            "generation_log_probs": self._logprobs.get(index, []),
        }
        if index in self._versions:
            fields["weight_versions"] = self._versions[index]
        if routed_experts is not None:
            fields["routed_experts"] = routed_experts
        return fields


def with_carried(event: str, record: Record) -> str:
    """Puts the fields into the deltas of a server-sent event."""
    chunk = json.loads(event.removeprefix("data: "))
    for choice in chunk["choices"]:
        choice["delta"] |= record.carried(choice["index"])
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


class Supervision:
    """How a server waits for its engine.

    Args:
        watched: Returns a context that raises `EngineDiedError` if the engine dies in it.
        timeout_s: Seconds after which a request is aborted; None for never.
    """

    def __init__(self, watched: Callable[[], AbstractAsyncContextManager[Any]], timeout_s: float | None) -> None:
        self.watched = watched
        self._timeout_s = timeout_s

    async def results(
        self, results: AsyncGenerator[Any, None], record: Record, *, grammar: str | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yields and records the engine's results of one request; closing it aborts the request in the engine.

        It ends at the first failure and records it, because vLLM's handlers would replace its message.

        Args:
            results: vLLM's ``RequestOutput``s. Aborted ones are not yielded.
            record: Where to note them.
            grammar: The field of the request that holds the grammar of the reply; None if it follows none.
        """
        end = None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s
        async with aclosing(results):
            while record.failure is None:
                try:
                    result = await self._next(results, end)
                    _check_complete(result, grammar if record.empty else None)
                except Exception as error:
                    record.failure = error
                    return
                if result is None:
                    return
                record.add(result)
                yield result

    async def _next(self, results: AsyncGenerator[Any, None], end: float | None) -> Any:
        """Returns the next result; None after the last.

        The limits are around each step, because the steps of a stream run in different tasks.
        """
        try:
            async with self.watched(), asyncio.timeout_at(end) as deadline:
                result = await anext(results, None)
        except TimeoutError:
            if not deadline.expired():
                raise  # the engine's own
            limit_s = self._timeout_s or 0.0
            problem = f"the request took longer than request.timeout_s = {limit_s:g} s, and was aborted"
            raise RequestError(f"{problem}; {GenerationTimeoutError.remedy(limit_s)}", status=504) from None
        return result


def _check_complete(result: Any, grammar: str | None) -> None:
    """Refuses a result that the engine cut off.

    Raises:
        RequestError: It was cut off, or nothing was generated because the engine cannot compile the grammar.
    """
    reasons = {output.finish_reason for output in result.outputs} if result is not None else set()
    if "error" in reasons and grammar is not None:
        raise RequestError(
            f"{grammar}: the engine cannot compile this schema or grammar; look for one that refers to itself without end",
            parameter=grammar,
        )
    if cut_off := reasons & {"abort", "error"}:
        raise RequestError(
            f"the engine ended the request before its reply was complete (finish reason {min(cut_off)!r}): generation was "
            "paused with mode 'abort', or a refit failed meanwhile; send the request again",
            status=503,
        )
