"""Requests to one engine: sent, awaited under a time limit, aborted when nobody waits any more, and turned into samples."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from quirks_core.config import SamplingSection
from worker.batch import Batch, sample
from worker.engine import vllm_adapter
from worker.engine.engine import Engine
from worker.errors import GenerationAbortedError, GenerationTimeoutError

_T = TypeVar("_T")


class Requests:
    """Every request of a worker to its engine.

    Every call raises `NotReadyError` if the engine must not generate now.

    Attributes:
        sampling: How to sample, as planned.
        timeout_s: Seconds after which a request is given up; None for never.
    """

    def __init__(self, engine: Engine, sampling: SamplingSection, timeout_s: float | None) -> None:
        self.sampling = sampling
        self.timeout_s = timeout_s
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
        """Returns what yields a sample for each prompt, as it finishes; to be used under `aclosing`, as all of these.

        Args:
            rows: Prompts by the number under which to speak of them.
            stop: Texts that end every sample.
            greedy: Take the most probable token instead of sampling.
            rank: Which of the engine's own data-parallel ranks; the engine chooses if None.
            seeds: By the same number, a seed for the sample alone; the engine draws from its own where there is none.
            sampling: How to sample; as planned if None.
        """

        async def one(index: int, row: list[int]) -> tuple[int, Batch]:
            room = self._engine.llm.model_config.max_model_len - len(row)
            if room == 0:
                return index, sample(row, [], [], truncated=False)
            params = self._params(room, stop, greedy=greedy, seed=seeds.get(index), sampling=sampling)
            output = await self._finish(index, row, params, rank)
            completion = output.outputs[0]
            return index, sample(
                row,
                list(completion.token_ids),  # the engine's own list is alive
                vllm_adapter.sampled_logprobs(completion),
                truncated=completion.finish_reason == "length",
                weight_versions=vllm_adapter.version_spans(completion, self._engine.readiness.version),
                cached=output.num_cached_tokens or 0,
            )

        return self._each(rows, one)

    def texts(
        self, rows: Mapping[int, list[int]], stop: Sequence[str], *, greedy: bool, rank: int | None = None
    ) -> AsyncGenerator[tuple[int, str], None]:
        """Returns what yields a text for each prompt, as it finishes; arguments as for `samples`."""

        async def one(index: int, row: list[int]) -> tuple[int, str]:
            room = self._engine.llm.model_config.max_model_len - len(row)
            output = await self._finish(index, row, self._params(room, stop, greedy=greedy, text=True), rank)
            return index, output.outputs[0].text

        return self._each(rows, one)

    def scores(
        self, rows: Mapping[int, list[int]], *, rank: int | None = None
    ) -> AsyncGenerator[tuple[int, list[float]], None]:
        """Returns what yields a logprob for each token of a row, computed at once as a prompt; arguments as for `samples`.

        That of the first token is 0.0: nothing comes before it.
        """

        async def one(index: int, row: list[int]) -> tuple[int, list[float]]:
            output = await self._finish(index, row, vllm_adapter.scoring_params(), rank)
            return index, vllm_adapter.prompt_logprobs(output)

        return self._each(rows, one)

    def abort(self, why: str) -> None:
        """Ends every request; those who wait for one get an error that says why."""
        for task in self._running:
            task.cancel(why)

    async def close(self, why: str) -> None:
        """Ends every request, and waits until the engine has been told."""
        self.abort(why)
        if self._running:
            await asyncio.wait(tuple(self._running))

    def _params(
        self,
        room: int,
        stop: Sequence[str],
        *,
        greedy: bool,
        seed: int | None = None,
        text: bool = False,
        sampling: SamplingSection | None = None,
    ) -> Any:
        sampling = sampling or self.sampling
        most = min(sampling.max_new_tokens, room)
        return vllm_adapter.sampling_params(sampling, greedy=greedy, max_tokens=most, stop=stop, seed=seed, text=text)

    async def _finish(self, index: int, row: list[int], params: Any, rank: int | None) -> Any:
        """Sends one request and waits for its end; gives it up after the time limit. Returns vLLM's ``RequestOutput``."""
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
        """Yields what comes of every row, in the order in which it comes; leaving early, by error or by choice, ends the rest.

        Raises:
            GenerationTimeoutError: Once all others are through, if samples took too long.
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
                        raise  # the caller does not want it any more
                    raise GenerationAbortedError(f"generation was aborted: {error.args[0]}") from None
                yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._running.difference_update(tasks)
        if late:
            raise GenerationTimeoutError(_too_long(late, self.timeout_s or 0.0))


def _too_long(indices: Sequence[str], limit_s: float) -> str:
    which = f"sample {indices[0]} took" if len(indices) == 1 else f"samples {', '.join(sorted(indices, key=int))} took"
    aborted = "was aborted" if len(indices) == 1 else "were aborted"
    return f"{which} longer than request.timeout_s = {limit_s:g} s, and {aborted}; {GenerationTimeoutError.remedy(limit_s)}"
