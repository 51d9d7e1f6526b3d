"""The engine as vLLM's handlers use it, which ends with an error what the engine cut off, and what replies carry of it."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from vllm.v1.engine.exceptions import EngineGenerateError

from quirks_core.base.errors import QuirksError
from worker.generation import too_long
from worker.server.errors import RequestError, ServerStartError
from worker.server.prefix_tokens import CARRIED

if TYPE_CHECKING:
    from worker.engine.engine import Engine


def found(name: str, *modules: str) -> Any:
    """Returns what the installed vLLM has in the first of these modules."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ServerStartError(f"the installed vLLM has no {name} in {' or '.join(modules)}")


_GenerationError: Any = found("GenerationError", "vllm.exceptions", "vllm.entrypoints.openai.engine.protocol")


class CutOffError(RequestError, _GenerationError):  # type: ignore[misc]
    """A request ended before its reply was complete; also vLLM's handlers of streams send its message and its status."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE) -> None:
        super().__init__(message, status=status)
        self.status_code = status


class SupervisedEngine:
    """An ``EngineClient`` of vLLM whose generations are complete or end with an error.

    Args:
        engine: The engine.
        timeout_s: Seconds after which a request is aborted; None for never.
    """

    def __init__(self, engine: Engine, timeout_s: float | None) -> None:
        self._engine = engine
        self._timeout_s = timeout_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.llm, name)

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Yields vLLM's results of one request; closing it aborts the request in the engine.

        Raises:
            CutOffError: The engine ended the request, or died, or the request took too long.
        """
        end = None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s
        async with aclosing(self._engine.llm.generate(prompt, sampling_params, request_id, **kwargs)) as results:
            try:
                while True:
                    async with self._engine.watched(), asyncio.timeout_at(end):
                        result = await anext(results, None)
                    if result is None:
                        return
                    self._engine.readiness.check()  # a failed refit ends what is in flight
                    if any(output.finish_reason == "abort" for output in result.outputs):
                        raise QuirksError(
                            "the engine ended the request before its reply was complete: generation was paused with mode "
                            "'abort', or the engine was put to sleep; send the request again"
                        )
                    yield result
            except TimeoutError:
                raise CutOffError(too_long("the request", self._timeout_s), HTTPStatus.GATEWAY_TIMEOUT) from None
            except QuirksError as error:
                raise CutOffError(str(error)) from error
            except EngineGenerateError as error:  # vLLM packs what a request did wrong into it
                # What cannot be encoded for the engine, vLLM has registered before.
                await self._engine.llm.abort(request_id)
                raise (error.__cause__ or error) from None


class Record:
    """What the engine generated for one chat.

    Attributes:
        fields: Those that the message of each choice carries, by the choice's index.
    """

    def __init__(self) -> None:
        self.fields: dict[int, dict[str, Any]] = {}

    async def noting(self, results: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Yields vLLM's ``RequestOutput``s, each the whole of the generation or the next piece of it, and notes them."""
        async with aclosing(results):
            async for result in results:
                self._add(result)
                yield result

    def _add(self, result: Any) -> None:
        for output in result.outputs:
            fields = self.fields.setdefault(output.index, {name: [] for name in CARRIED[:3]})
            prompt, token_ids, logprobs = fields.values()
            prompt[:] = result.prompt_token_ids or prompt
            token_ids += output.token_ids
            for token, entry in zip(output.token_ids, output.logprobs or (), strict=False):
                logprobs.append(max(entry[token].logprob, -9999.0))  # vLLM's own lowest: JSON has no infinity
            if spans := getattr(output, "weight_versions", None):  # from vLLM 0.32 on, with the last piece
                fields["weight_versions"] = [(span.version, span.start, span.end) for span in spans]

    def in_event(self, event: str) -> str:
        """Puts the fields into the deltas of a server-sent event."""
        chunk = json.loads(event.removeprefix("data: "))
        for choice in chunk["choices"]:
            choice["delta"] |= self.fields[choice["index"]]
        return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
