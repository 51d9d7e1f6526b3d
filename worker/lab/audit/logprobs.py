"""Logprobs of an engine that loaded the checkpoint: the reference of refitted ones, and compared with transformers.

Where it differs from transformers, a refit is not the cause.

To name the first layer whose output differs, forward hooks record the outputs of both models on the same tokens. Each output is
reduced to a few numbers per token before a worker returns it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from quirks_core.base.errors import words
from quirks_core.configuration.sections import SamplingSection
from worker.batch import padded
from worker.engine import vllm_adapter
from worker.lab.audit.records import AuditError, Disagreement, Logits
from worker.lab.kit.lab import generated
from worker.lab.parity.records import Sample
from worker.lab.parity.scoring import logprobs as scored
from worker.lab.parity.session import prefilled

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle
    from transformers import PreTrainedModel

    from worker.async_worker import VllmAsyncGenerationWorker

#: Number of prompts, tokens of each, and greedy tokens generated from each.
_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 4, 24, 16
#: Largest difference between logprobs of equal weights, in nats, by dtype; kernels and batches are the same.
_OF_EQUAL_WEIGHTS = {"float32": 1e-3}
_OF_COARSE_WEIGHTS = 2e-2
#: Largest difference to transformers in float32 of a correct engine, in nats, by the engine's dtype. Seen in float32: 1e-5 with
#: most models, 1e-2 with an activation function that vLLM computes in bfloat16.
_TOLERANCE = {"float32": 0.03}
_COARSE = 1.0
#: Largest difference between the outputs of a layer, relative to the largest output.
_OF_LAYERS = {"float32": 3e-3}
_OF_COARSE_LAYERS = 0.1
#: Where a worker keeps its recording between two calls.
_RECORDING = "_model_quirks_recording"
#: Numbers that the output of a layer for one token is reduced to.
_NUMBERS = 4

#: By layer (``layers.0``): N tokens by `_NUMBERS` numbers.
Outputs: TypeAlias = dict[str, list[list[float]]]


class Logprobs:
    """Tokens with their logprobs from an engine that loaded the checkpoint; false before `take`.

    Attributes:
        rows: Token ids of each sequence.
        expected: The logprob of every token except the first of each sequence.
    """

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.expected: list[float] = []

    def __bool__(self) -> bool:
        return bool(self.rows)

    async def take(self, worker: VllmAsyncGenerationWorker, vocab_size: int) -> None:
        """Has the engine continue prompts of random tokens greedily, and score all of it."""
        draw = random.Random(0)  # noqa: S311  # the same prompts every time
        longest = worker.engine.llm.model_config.max_model_len - 1
        length = max(1, min(_PROMPT_TOKENS, longest - _NEW_TOKENS))
        plain = range(vocab_size // 8, vocab_size // 2)  # special tokens and placeholders are at the ends
        prompts = [[draw.choice(plain) for _ in range(length)] for _ in range(_PROMPTS)]
        sampling = SamplingSection(max_new_tokens=min(_NEW_TOKENS, max(1, longest - length)), ignore_eos=True)
        for prompt in prompts:
            (row,) = await generated(worker, [prompt], greedy=True, sampling=sampling)
            self.rows.append([*prompt, *row.tokens])
        self.expected = await self._score(worker)

    async def compare(self, worker: VllmAsyncGenerationWorker) -> Logits:
        """Compares the logprobs of another engine for the same tokens."""
        dtype = vllm_adapter.model_dtype(worker.engine.llm)
        return Logits.of(await self._score(worker), self.expected, _OF_EQUAL_WEIGHTS.get(dtype, _OF_COARSE_WEIGHTS))

    async def _score(self, worker: VllmAsyncGenerationWorker) -> list[float]:
        # One by one: other batches may mean other kernels.
        return [value for row in self.rows for values in await prefilled(worker, [(row[:1], row[1:])]) for value in values]


async def disagreement_of(
    worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel, logprobs: Logprobs
) -> Disagreement | None:
    """Compares an engine that loaded the checkpoint, and on which `logprobs` were taken, with transformers in float32.

    Returns:
        How they differ, and from which layer on; None if they agree.

    Raises:
        AuditError: transformers cannot compute the model.
    """
    dtype = vllm_adapter.model_dtype(worker.engine.llm)
    samples = [Sample(prompt=tuple(row[:1]), tokens=tuple(row[1:]), rollout=()) for row in logprobs.rows]
    try:
        expected = [value for row in scored(trainer, samples) for value in row]
    except Exception as error:
        raise AuditError(f"transformers cannot compute the model: {words(error)}; --no-logits skips this comparison") from error
    found = Logits.of(logprobs.expected, expected, _TOLERANCE.get(dtype, _COARSE))
    if found.close:
        return None
    row = logprobs.rows[0]
    got = await _recorded(worker, row)
    theirs = computed(trainer, row)
    layer = first_that_differs(got, theirs, _OF_LAYERS.get(dtype, _OF_COARSE_LAYERS))
    return Disagreement(logits=found, layer=layer, compared=len(got.keys() & theirs.keys()))


async def _recorded(worker: VllmAsyncGenerationWorker, row: Sequence[int]) -> Outputs:
    await worker.engine.call(start_recording, len(row))
    try:
        async for _ in worker.score_async(padded([row])):
            pass
    finally:
        answers = await worker.engine.call(stop_recording)
    return {name: rows for answer in reversed(answers) for name, rows in answer.items()}


# ---- layers


def start_recording(worker: Any, tokens: int) -> None:
    """Has a worker of the engine record the layers' outputs for the next prompt of this many tokens (`Engine.call`)."""
    outputs: Outputs = {}
    setattr(worker, _RECORDING, (outputs, _hooks(worker.weight_transfer_engine.model, tokens, outputs)))


def stop_recording(worker: Any) -> Outputs:
    """Returns what was recorded: nothing for layers of other pipeline stages, and for compiled layers (`Engine.call`)."""
    found, hooks = getattr(worker, _RECORDING)
    delattr(worker, _RECORDING)
    for hook in hooks:
        hook.remove()
    return dict(found)


def computed(model: nn.Module, row: Sequence[int]) -> Outputs:
    """Returns the outputs of the layers of a transformers model for a row of tokens."""
    found: Outputs = {}
    hooks = _hooks(model, len(row), found)
    try:
        with torch.inference_mode():
            model(torch.tensor([list(row)]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def first_that_differs(got: Mapping[str, Sequence[Sequence[float]]], expected: Outputs, tolerance: float) -> str | None:
    """Names the first layer that differs, of those that both sides recorded, by more than a share of its largest number."""
    for name, rows in expected.items():
        if name in got:
            ours, theirs = torch.tensor(got[name], dtype=torch.float64), torch.tensor(rows, dtype=torch.float64)
            if not bool(((ours - theirs).abs() <= tolerance * theirs.abs().max()).all()):  # false for NaN as well
                return name
    return None


def _hooks(model: nn.Module, tokens: int, into: Outputs) -> list[RemovableHandle]:
    return [module.register_forward_hook(partial(_note, name, tokens, into)) for name, module in _layers(model)]


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the layers of every stack by the last two parts of their path; the rest differs between the two sides."""
    for path, module in model.named_modules():
        above, _, number = path.rpartition(".")
        stacks = above.split(".")
        if number.isdecimal() and not any(part.isdecimal() for part in stacks):  # experts within a layer are not layers
            yield f"{stacks[-1]}.{number}", module


def _note(name: str, tokens: int, into: Outputs, _module: nn.Module, _inputs: Any, output: Any) -> None:
    """Keeps the first output of a layer that is as long as the prompt."""
    outputs = output if isinstance(output, tuple | list) else [output]
    parts = [part for part in outputs if isinstance(part, torch.Tensor) and part.dim() > 1 and part.is_floating_point()]
    if name in into or not parts:
        return
    # vLLM returns the residual separately, and adds it in the next layer's norm.
    hidden = [part for part in parts[:2] if part.shape == parts[0].shape]
    whole = torch.stack([part.detach().double() for part in hidden]).sum(0)
    rows = whole.reshape(-1, whole.shape[-1])
    if len(rows) >= tokens:
        into[name] = _reduced(rows[:tokens]).tolist()


def _reduced(rows: torch.Tensor) -> torch.Tensor:
    """Projects [N, W] onto N rows of `_NUMBERS`, the same on every machine."""
    generator = torch.Generator().manual_seed(rows.shape[-1])
    onto = torch.randn(rows.shape[-1], _NUMBERS, generator=generator, dtype=torch.float64)
    return rows @ onto.to(rows.device) / rows.shape[-1] ** 0.5
