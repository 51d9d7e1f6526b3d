"""The calls of a trainer that are the same for one worker and for a group of them: it generates, and gives weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.sections import SamplingSection
from worker.batch import Batch, check_lengths, prompts, seeds, stop_strings, texts

if TYPE_CHECKING:
    import torch

    from worker.refit.weights.scope import RefitScope


class _Refits(Protocol):
    """Refits of an engine (`worker.refit.refitting.Refitting`), or of several (`worker.group.refits.GroupRefits`)."""

    async def addresses(self) -> list[str]: ...
    async def receive(self, transport: str, version: str | None, clear_cache: bool | None) -> bool: ...
    async def from_model(self, model: Any, scope: Any, *, version: str | None, clear_cache: bool | None) -> None: ...


class Calls(ABC):
    """Every engine of a group takes the same weights; after a refit that failed on some of them, none generates."""

    config: GenerationConfig

    @property
    @abstractmethod
    def _refits(self) -> _Refits: ...

    @property
    @abstractmethod
    def _longest(self) -> int:
        """The longest sequence of a running engine, in tokens."""

    @abstractmethod
    async def _encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    @abstractmethod
    def _stream(
        self, kind: str, rows: Sequence[list[int]], rank: int | None, *arguments: Any, **options: Any
    ) -> AsyncGenerator[tuple[int, Any], None]:
        """Returns a generator of what a call of `worker.generation.Requests` gives for each row."""

    # ---- generation

    async def generate_async(
        self,
        data: Mapping[str, Any],
        greedy: bool = False,
        *,
        sampling: SamplingSection | None = None,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[tuple[int, Batch], None]:
        """Generates from a batch of prompts; yields each sample as it finishes.

        Leaving the loop early aborts the remaining requests.

        Args:
            data: ``input_ids`` [B, S] int64, padded on the right; ``input_lengths`` [B] int64; optionally ``stop_strings``, for
                each row None or a list of texts: together with the configured ones they end every sample of the batch; and
                ``seeds`` [B], an integer for each sample, which then does not depend on other requests.
            greedy: Take the most probable token instead of sampling.
            sampling: How to sample this batch; as configured and planned if None.
            data_parallel_rank: Which of the data-parallel ranks generates. If None the engine chooses, or a group: for each
                prompt the engine with the fewest requests.

        Yields:
            ``(original_index, output)``; the fields of ``output`` are described at `worker.batch.sample`. A prompt that fills
            the context comes back with a generation length of 0.

        Raises:
            BatchError: The batch does not have that form; nothing was sent.
            NotReadyError: The engine sleeps, or its weights are not those of one policy.
            GenerationTimeoutError: Samples took longer than ``request.timeout_s``; raised after all others were yielded.
            GenerationAbortedError: A refit failed half-way meanwhile, or the worker was shut down.
            EngineDiedError: A process of the engine died; of a group it is a `RankError`.
        """
        rows = prompts(data)
        check_lengths(rows, self._longest)
        stop = stop_strings(data, len(rows), (sampling or self.config.sampling).stop_strings)
        options: dict[str, Any] = {"greedy": greedy, "seeds": seeds(data, len(rows)), "sampling": sampling}
        async with aclosing(self._stream("samples", rows, data_parallel_rank, stop, **options)) as samples:
            async for item in samples:
                yield item

    async def generate_text_async(
        self, data: Mapping[str, Any], greedy: bool = False, *, data_parallel_rank: int | None = None
    ) -> AsyncGenerator[tuple[int, dict[str, list[str]]], None]:
        """Generates text from a batch of text prompts; yields each sample as it finishes.

        Args:
            data: ``prompts``, B texts; optionally ``stop_strings``, as for `generate_async`.
            greedy: Take the most probable token instead of sampling.
            data_parallel_rank: As for `generate_async`.

        Yields:
            ``(original_index, {"texts": [text]})``.

        Raises:
            BatchError: The batch does not have that form, or a prompt does not fit; nothing was sent.
            NotReadyError, GenerationTimeoutError, GenerationAbortedError, EngineDiedError: As for `generate_async`.
        """
        rows = await self._encode(texts(data))
        check_lengths(rows, self._longest, room=1)
        stop = stop_strings(data, len(rows), self.config.sampling.stop_strings)
        async with aclosing(self._stream("texts", rows, data_parallel_rank, stop, greedy=greedy)) as finished:
            async for index, text in finished:
                yield index, {"texts": [text]}

    # ---- weights

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
