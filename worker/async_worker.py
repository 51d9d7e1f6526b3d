"""The generation worker that a trainer holds: one vLLM engine with its quirks applied and proven."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quirks_core.apply import Applied, apply, check_engine_environment
from quirks_core.bootstrap import bootstrap
from quirks_core.checkpoint import require_weights
from quirks_core.context import RunContext
from quirks_core.errors import QuirksError, UsageError
from quirks_core.lock import check_lock
from quirks_core.plan import Plan
from quirks_core.receipt import Receipt, collect
from quirks_core.registry import Registry
from quirks_core.switches import Switches, Wishes
from worker import processes, vllm_adapter
from worker.batch import Batch, prompts, sample
from worker.config import GenerationConfig
from worker.errors import BatchError, EngineStartError, GenerationTimeoutError
from worker.refit import RefitScope, tensors, write

if TYPE_CHECKING:
    import psutil
    import torch

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)

#: How many error lines of each process go into our error when an engine dies.
_ERROR_LINES = 4
#: Seconds that a process may acknowledge after the engine is up; it does so before it loads the model.
_ACKNOWLEDGE_S = 5.0


class VllmAsyncGenerationWorker:
    """Generates with one vLLM engine.

    Making the worker resolves the plan, so a configuration that is refused fails here, before any engine starts;
    `post_init_async` starts the engine. All calls must come from one event loop::

        worker = VllmAsyncGenerationWorker(config)
        await worker.post_init_async()
        async for index, output in worker.generate_async(batch):
            ...
        await worker.shutdown()

    Attributes:
        config: The configuration.
        plan: What applies and why.
        warnings: What the user should know: the plan's warnings, then those of putting it into force.
    """

    def __init__(
        self,
        config: GenerationConfig | Mapping[str, Any],
        bundle_indices: Sequence[int] | None = None,
        fraction_of_gpus: float = 1.0,
        seed: int | None = None,
        *,
        disable: Sequence[str] = (),
        force: Sequence[str] = (),
    ) -> None:
        """Resolves the plan.

        Args:
            config: The configuration, or a nested mapping of one.
            bundle_indices: Bundles of the current Ray placement group that belong to this worker.
            fraction_of_gpus: Share of a GPU that each engine process takes, in (0, 1].
            seed: Seed of the engine; replicas that share nothing need different ones. The configuration's if None.
            disable: Names to turn off: quirks, flags, ``distribution:NAME``, ``third-party``, ``all``. Stronger than
                environment and configuration.
            force: Names to turn on, whatever their match and version ranges say.

        Raises:
            UsageError: Something in the configuration is wrong.
            RefusedError: The configuration cannot work; the error lists all reasons.
            LockError: The loaded quirks are not those of the lock file.
            BrokenPluginsError: There are broken plugins, and MODEL_QUIRKS_STRICT is 1.
        """
        self.config = config if isinstance(config, GenerationConfig) else GenerationConfig.parse(config)
        if not 0 < fraction_of_gpus <= 1:
            raise UsageError(f"fraction_of_gpus must lie in (0, 1], not {fraction_of_gpus}")
        if not self.config.engine.async_engine:
            raise UsageError("engine.async_engine is false, but VllmAsyncGenerationWorker runs the asynchronous engine")
        self._bundle_indices = tuple(bundle_indices) if bundle_indices is not None else None
        self._fraction_of_gpus = fraction_of_gpus
        self._seed = seed
        asked = self.config.quirks
        switches = Switches.gather(api=Wishes(disable, force), config_file=Wishes(asked.disable, asked.force))
        self._registry = Registry.load(switches=switches)
        check_lock(self._registry, asked.locked)
        self.plan: Plan = self._registry.resolve(RunContext.gather(self.config), switches)
        self.plan.check()
        self._arguments = self._engine_arguments()
        check_engine_environment({**os.environ, **self.config.env})
        if self.plan.value("engine.load_format") != "dummy":
            require_weights(self.config.model.path)
        self._receipt: Receipt | None = None
        self.warnings: list[str] = list(self.plan.warnings)
        self._applied: Applied | None = None
        self._engine: Any = None
        self._processes: frozenset[psutil.Process] = frozenset()

    @property
    def receipt(self) -> Receipt:
        """What every process of the engine has; there from `post_init_async` on, also after `shutdown`.

        Raises:
            QuirksError: The engine has not been started.
        """
        if self._receipt is None:
            raise QuirksError("there is no receipt before the engine runs; call post_init_async first")
        return self._receipt

    async def post_init_async(self) -> None:
        """Puts the plan into force, starts the engine and collects the receipt.

        The event loop stands still until the engine is up: 20 to 60 s on two CPU cores.

        Raises:
            EngineStartError: The engine died; its last error lines are in the message, the active quirks in the notes.
            ReceiptError: A process does not carry out the plan, or the engine changed a value that a quirk set.
        """
        if self._engine is not None:
            raise QuirksError("the engine is running already; call post_init_async once")
        before = processes.descendants()
        self._applied = apply(self.plan)
        self._set_environment(self._applied)
        try:
            # vLLM loads plugins once per process, so a second engine in this one would be without its plan.
            bootstrap()
            self._engine = vllm_adapter.start_engine(self._arguments)
            self._processes = processes.engine_processes(before)
            if not await vllm_adapter.report_configuration(self._engine):
                own = "engine.vllm_kwargs.worker_extension_cls"
                self.warnings.append(f"workers do not report their configuration, because {own} takes the place of ours")
            self._receipt = collect(
                self._applied.folder,
                self.plan.digest,
                processes.expected_to_acknowledge(before),
                vllm_adapter.read_back(self._engine, self.plan),
                wait_s=_ACKNOWLEDGE_S,
            )
        except BaseException as error:
            lines = _last_errors(self._applied.folder)
            self._processes |= processes.descendants() - before  # nobody else started any meanwhile
            await self.shutdown()
            if isinstance(error, QuirksError) or not isinstance(error, Exception):
                self._note_quirks(error)
                raise
            raise self._note_quirks(_start_error(error, lines)) from error
        self.warnings += self._applied.warnings
        self.warnings += self._registry.observe(self.plan, self._receipt)

    async def generate_async(self, data: Mapping[str, Any], greedy: bool = False) -> AsyncGenerator[tuple[int, Batch], None]:
        """Generates from a batch of prompts; yields each sample as it finishes.

        Leaving the loop early aborts what is still running.

        Args:
            data: ``input_ids`` [B, S] int64, padded on the right; ``input_lengths`` [B] int64.
            greedy: Take the most probable token instead of sampling.

        Yields:
            ``(original_index, output)``; the fields of ``output`` are described at `worker.batch.sample`. A prompt that fills
            the context comes back with a generation length of 0.

        Raises:
            BatchError: The batch does not have that form; nothing was sent.
            GenerationTimeoutError: A sample took longer than ``request.timeout_s``.
        """
        rows = prompts(data)
        longest = self._running().model_config.max_model_len
        if too_long := [index for index, row in enumerate(rows) if len(row) > longest]:
            raise BatchError(f"batch: rows {too_long} are longer than engine.max_model_len = {longest}")

        async def one(index: int, row: list[int]) -> tuple[int, Batch]:
            room = longest - len(row)
            if room == 0:
                return index, sample(row, [], [], truncated=False)
            output = await self._finish(index, {"prompt_token_ids": row}, greedy=greedy, room=room)
            completion = output.outputs[0]
            logprobs = vllm_adapter.sampled_logprobs(completion)
            return index, sample(row, list(completion.token_ids), logprobs, truncated=completion.finish_reason == "length")

        async with aclosing(_as_finished([one(index, row) for index, row in enumerate(rows)])) as finished:
            async for item in finished:
                yield item

    async def generate_text_async(
        self, data: Mapping[str, Sequence[str]], greedy: bool = False
    ) -> AsyncGenerator[tuple[int, dict[str, list[str]]], None]:
        """Generates text from a batch of text prompts; yields each sample as it finishes.

        Args:
            data: ``prompts``, B texts.
            greedy: Take the most probable token instead of sampling.

        Yields:
            ``(original_index, {"texts": [text]})``.

        Raises:
            BatchError: The batch does not have that form, or a prompt does not fit; nothing was sent.
            GenerationTimeoutError: A sample took longer than ``request.timeout_s``.
        """
        texts = data.get("prompts")
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise BatchError("batch: 'prompts' must be a list of texts")
        engine = self._running()
        longest = engine.model_config.max_model_len
        encoded = [list(engine.get_tokenizer().encode(text)) for text in texts]
        if wrong := [index for index, ids in enumerate(encoded) if not 0 < len(ids) < longest]:
            raise BatchError(f"batch: prompts {wrong} are empty or leave no room below engine.max_model_len = {longest}")

        async def one(index: int, ids: list[int]) -> tuple[int, dict[str, list[str]]]:
            output = await self._finish(index, {"prompt_token_ids": ids}, greedy=greedy, room=longest - len(ids), text=True)
            return index, {"texts": [output.outputs[0].text]}

        async with aclosing(_as_finished([one(index, ids) for index, ids in enumerate(encoded)])) as finished:
            async for item in finished:
                yield item

    async def refit_async(self, model: torch.nn.Module, scope: RefitScope | None = None) -> None:
        """Gives the engine the trainer's weights through vLLM's native weight transfer.

        Args:
            model: The trainer's model, with a checkpoint's names.
            scope: What to send; what the plan says (``refit.scope``) if None.
        """
        scope = scope or RefitScope(self.plan.value("refit.scope"))
        engine = self._running()
        with tempfile.TemporaryDirectory(prefix="model-quirks-refit-") as folder:  # created with mode 0700
            file = Path(folder) / "weights.safetensors"
            await asyncio.to_thread(lambda: write(tensors(model, scope), file))
            await vllm_adapter.update_weights(engine, str(file))

    async def shutdown(self) -> bool:
        """Stops the engine, ends every process that it started and takes the plan out of force; may be called again."""
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.shutdown()
        finally:
            if self._applied is not None:
                await asyncio.to_thread(processes.end, self._processes)
                self._applied.undo()
                self._applied = None
        return True

    def _running(self) -> Any:
        if self._engine is None:
            raise QuirksError("the engine is not running; call post_init_async first")
        return self._engine

    def _engine_arguments(self) -> dict[str, Any]:
        arguments = vllm_adapter.engine_arguments(self.config, self.plan, in_placement_group=self._bundle_indices is not None)
        if self._seed is not None and "engine.seed" not in self.plan.context.typed:
            arguments["seed"] = self._seed
        return arguments

    def _set_environment(self, applied: Applied) -> None:
        for variable, value in self.config.env.items():
            applied.set(variable, self.plan.changes.get(f"env.{variable}", value))
        if self._bundle_indices is not None:
            applied.set("VLLM_RAY_BUNDLE_INDICES", ",".join(map(str, self._bundle_indices)))
            applied.set("VLLM_RAY_PER_WORKER_GPUS", str(self._fraction_of_gpus))

    async def _finish(self, index: int, prompt: dict[str, Any], *, greedy: bool, room: int, text: bool = False) -> Any:
        """Sends one request and waits for its end; gives it up after the time limit."""
        limit = self.plan.value("request.timeout_s")
        sampling = vllm_adapter.planned_sampling(self.config, self.plan)
        params = vllm_adapter.sampling_params(sampling, greedy=greedy, max_tokens=min(sampling.max_new_tokens, room), text=text)
        try:
            async with asyncio.timeout(limit) as deadline:
                # Leaving the loop by an exception closes the generator, and that aborts the request.
                async for output in self._running().generate(prompt, params, f"{uuid.uuid4().hex}-{index}"):
                    final = output
        except TimeoutError:
            if not deadline.expired():
                raise  # the engine's own
            raise GenerationTimeoutError(
                f"sample {index} took longer than request.timeout_s = {limit:g} s and was aborted; "
                f"raise it with request.timeout_s or export NRL_VLLM_ASYNC_TIMEOUT_SECONDS={int(limit * 2) or 1}"
            ) from None
        return final

    def _note_quirks(self, error: _E) -> _E:
        for verdict in self.plan.active:
            error.add_note(f"active quirk: {verdict.id} ({verdict.title}); to run without it: --disable {verdict.id}")
        return error


async def _as_finished(waiting: Sequence[Awaitable[_T]]) -> AsyncGenerator[_T, None]:
    """Yields results in the order in which they come; leaving early, by error or by choice, cancels the rest.

    Use it under `aclosing`: who leaves a generator does not leave the one that it iterates over.
    """
    tasks = [asyncio.ensure_future(item) for item in waiting]
    try:
        for finished in asyncio.as_completed(tasks):
            yield await finished
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _start_error(error: Exception, lines: list[str]) -> EngineStartError:
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return EngineStartError("\n".join([f"the engine died while it started: {reason}", *(f"  {line}" for line in lines)]))


def _last_errors(folder: Path) -> list[str]:
    """The last lines that each of the engine's processes logged as errors; the process that failed first comes first."""
    last: list[str] = []
    for file in sorted(folder.glob("errors-*.log"), key=lambda file: file.stat().st_mtime):
        text = file.read_text(encoding="utf-8", errors="replace")
        process = text.partition(": ")[0]
        lines = [line.strip().removeprefix(f"{process}: ") for line in text.splitlines() if line.strip(" ^~")]
        last += [f"{process}: {line}" for line in lines[-_ERROR_LINES:]]
    return last
