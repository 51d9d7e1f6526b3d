"""Requests to one engine: sent, awaited under a time limit, aborted when the caller leaves, and turned into samples."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from quirks_core.configuration.sections import SamplingSection
from worker.batch import Batch, routed_experts, sample
from worker.engine import vllm_adapter
from worker.engine.engine import Engine
from worker.errors import GenerationAbortedError, GenerationTimeoutError

_T = TypeVar("_T")


class Requests:
    """Every request of a worker to its engine.

    Every call raises `NotReadyError` if the engine must not generate now.

    Attributes:
        sampling: How to sample, as planned.
        timeout_s: Seconds after which a request is aborted; None for never.
        returns_experts: Whether samples have the experts that the engine chose for their tokens.
    """

    def __init__(
        self, engine: Engine, sampling: SamplingSection, timeout_s: float | None, *, returns_experts: bool = False
    ) -> None:
        self.sampling = sampling
        self.timeout_s = timeout_s
        self.returns_experts = returns_experts
        self._engine = engine
        self._running: set[asyncio.Task[Any]] = set()

    def samples(
        self,
        rows: Mapping[int, list[int]],
        stop: Sequence[str],
        *,
        greedy: bool,
        rank: int | None = None,
        seeds: Mapping[int, int] = MappingProxyType({}),
        sampling: SamplingSection | None = None,
    ) -> AsyncGenerator[tuple[int, Batch], None]:
        """Returns a generator of one sample per prompt, in the order in which they finish; use it under `aclosing`.

        Args:
            rows: Prompts by number; messages refer to these numbers.
            stop: Texts that end every sample.
            greedy: Take the most probable token instead of sampling.
            rank: Which of the engine's own data-parallel ranks; the engine chooses if None.
            seeds: By the same number, the sample's own seed; samples without one use the engine's generator.
            sampling: How to sample; as planned if None.
        """

        async def one(index: int, row: list[int]) -> tuple[int, Batch]:
            if len(row) == self._engine.llm.model_config.max_model_len:
                return index, sample(row, [], [], truncated=False)
            output = await self._complete(index, row, stop, rank, greedy=greedy, seed=seeds.get(index), sampling=sampling)
            completion = output.outputs[0]
            experts = self._experts(output, index) if self.returns_experts else {}
            return index, experts | sample(
                row,
                list(completion.token_ids),  # a copy, because the engine changes its list
                vllm_adapter.sampled_logprobs(completion),
                truncated=completion.finish_reason == "length",
                weight_versions=vllm_adapter.version_spans(completion, self._engine.readiness.version),
                cached=output.num_cached_tokens or 0,
            )

        return self._each(rows, one)

    def texts(
        self, rows: Mapping[int, list[int]], stop: Sequence[str], *, greedy: bool, rank: int | None = None
    ) -> AsyncGenerator[tuple[int, str], None]:
        """Returns a generator of one text per prompt, in the order in which they finish; arguments as for `samples`."""

        async def one(index: int, row: list[int]) -> tuple[int, str]:
            output = await self._complete(index, row, stop, rank, greedy=greedy, text=True)
            return index, output.outputs[0].text

        return self._each(rows, one)

    def scores(
        self, rows: Mapping[int, list[int]], *, rank: int | None = None
    ) -> AsyncGenerator[tuple[int, list[float]], None]:
        """Returns a generator of the logprobs of each row, computed as a prompt (prefill); arguments as for `samples`.

        The first token of a row has 0.0, because it has no context.
        """

        async def one(index: int, row: list[int]) -> tuple[int, list[float]]:
            output = await self._finish(index, row, vllm_adapter.scoring_params(), rank)
            return index, vllm_adapter.prompt_logprobs(output)

        return self._each(rows, one)

    def abort(self, why: str) -> None:
        """Aborts every request; waiting callers get an error with the reason."""
        for task in self._running:
            task.cancel(why)

    async def close(self, why: str) -> None:
        """Aborts every request, and waits until the engine has received that."""
        self.abort(why)
        if self._running:
            await asyncio.wait(tuple(self._running))

    def _experts(self, output: Any, index: int) -> Batch:
        if (found := vllm_adapter.routed_experts(output)) is None:
            raise GenerationAbortedError(f"the engine returned no experts with sample {index}, which a trainer would replay")
        length = len(output.prompt_token_ids) + len(output.outputs[0].token_ids)
        return routed_experts(found, length, self._engine.llm.model_config.get_num_experts())

    async def _complete(
        self,
        index: int,
        row: list[int],
        stop: Sequence[str],
        rank: int | None,
        *,
        sampling: SamplingSection | None = None,
        **options: Any,
    ) -> Any:
        """Generates after a prompt, with further options of `vllm_adapter.sampling_params`; else as `_finish`."""
        sampling = sampling or self.sampling
        most = min(sampling.max_new_tokens, self._engine.llm.model_config.max_model_len - len(row))
        options |= {"max_tokens": most, "stop": stop, "coalesce": self._engine.coalesces}
        return await self._finish(index, row, vllm_adapter.sampling_params(sampling, **options), rank)

    async def _finish(self, index: int, row: list[int], params: Any, rank: int | None) -> Any:
        """Sends one request and waits for its end; aborts it after the time limit. Returns vLLM's ``RequestOutput``."""
        prompt = {"prompt_token_ids": row}
        try:
            async with self._engine.watched() as llm:
                async with asyncio.timeout(self.timeout_s) as deadline:
                    # Leaving the loop by an exception closes the generator, and that aborts the request.
                    name = f"{uuid.uuid4().hex}-{index}"
                    async for output in llm.generate(prompt, params, name, data_parallel_rank=rank):
                        final = output
        except TimeoutError:
            if not deadline.expired():
                raise  # the engine's own
            raise GenerationTimeoutError(str(index)) from None
        completion = final.outputs[0]
        if completion.finish_reason in ("abort", "error"):
            raise GenerationAbortedError(f"sample {index} was ended by the engine ({completion.finish_reason})")
        return final

    async def _each(
        self, rows: Mapping[int, list[int]], one: Callable[[int, list[int]], Coroutine[Any, Any, _T]]
    ) -> AsyncGenerator[_T, None]:
        """Yields the result of every row as it finishes; leaving early, by error or by choice, aborts the rest.

        Raises:
            GenerationTimeoutError: After all other samples finished, if some took too long.
            GenerationAbortedError: `abort` was called.
        """
        self._engine.readiness.check()
        tasks = [asyncio.ensure_future(one(index, row)) for index, row in rows.items()]
        self._running.update(tasks)
        late = []
        try:
            for finished in asyncio.as_completed(tasks):
                try:
                    result = await finished
                except GenerationTimeoutError as error:
                    late.append(str(error))
                    continue
                except asyncio.CancelledError as error:
                    caller = asyncio.current_task()
                    if caller is None or caller.cancelling() or not error.args:
                        raise  # the caller has left
                    raise GenerationAbortedError(f"generation was aborted: {error.args[0]}") from None
                yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._running.difference_update(tasks)
        if late:
            raise GenerationTimeoutError(too_long(f"sample {', '.join(sorted(late, key=int))}", self.timeout_s))


def too_long(what: str, limit_s: float | None) -> str:
    """Returns what went wrong with a request that reached its time limit, in seconds, and what to do about it."""
    limit_s = limit_s or 0.0
    remedy = f"raise it with request.timeout_s or export NRL_VLLM_ASYNC_TIMEOUT_SECONDS={int(limit_s * 2) or 1}"
    return f"{what} took longer than request.timeout_s = {limit_s:g} s, and was aborted; {remedy}"
