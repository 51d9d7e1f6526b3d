"""Real vLLM engines on CPU, one per module, with tiny random checkpoints and transformers as the reference."""

from __future__ import annotations

import os

# vLLM reads its environment while it is imported, so this comes before anything that imports it.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Compilation is not the subject here, and takes longer than everything else.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from quirks_core.testing import checkpoints
from worker import VllmAsyncGenerationWorker

#: Prompts of different lengths on which the tiny models have clear margins between the best and the second token.
PROMPTS = (
    tuple(range(3, 27)),
    (100, 200, 300, 400, 50, 60, 70),
    tuple((7 * i * i + 11) % 500 + 5 for i in range(40)),
)
NEW_TOKENS = 24

_ENGINE = {"enforce_eager": True, "dtype": "float32", "max_model_len": 256}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts an engine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@dataclass(frozen=True)
class Generated:
    """What an engine, or the reference, made of one prompt."""

    tokens: list[int]
    logprobs: list[float]


def batch_of(prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Pads prompts on the right."""
    rows = [torch.tensor(prompt) for prompt in prompts]
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "input_lengths": torch.tensor([len(row) for row in rows]),
    }


async def generate(worker: VllmAsyncGenerationWorker, *, greedy: bool = True) -> list[Generated]:
    """Generates from `PROMPTS`; the results are in their order."""
    found: dict[int, Generated] = {}
    async for index, output in worker.generate_async(batch_of(PROMPTS), greedy=greedy):
        start = len(PROMPTS[index])
        found[index] = Generated(output["output_ids"][0, start:].tolist(), output["logprobs"][0, start:].tolist())
    return [found[index] for index in range(len(PROMPTS))]


class Reference:
    """The same checkpoint in transformers."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def greedy(self) -> list[Generated]:
        """Greedy continuations of `PROMPTS`, of `NEW_TOKENS` tokens each."""
        found = []
        for prompt in PROMPTS:
            row = list(prompt)
            with torch.no_grad():
                for _ in range(NEW_TOKENS):
                    row.append(int(self.model(torch.tensor([row])).logits[0, -1].argmax()))
            tokens = row[len(prompt) :]
            found.append(Generated(tokens, self.logprobs(prompt, tokens, temperature=1.0)))
        return found

    def logprobs(self, prompt: Sequence[int], tokens: Sequence[int], *, temperature: float) -> list[float]:
        """Logprob of every token under the softmax of logits / temperature."""
        with torch.no_grad():
            logits = self.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].double()
        chosen = torch.tensor(tokens)[:, None]
        return (logits / temperature).log_softmax(-1).gather(1, chosen)[:, 0].tolist()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a tiny checkpoint of a kind, once per kind and seed."""
    made: dict[tuple[str, int], Path] = {}

    def build(kind: str, seed: int = 0) -> Path:
        if (kind, seed) not in made:
            made[kind, seed] = checkpoints.build(kind, tmp_path_factory.mktemp(kind), seed=seed)
        return made[kind, seed]

    return build


@pytest.fixture(scope="session")
def running() -> Callable[..., AbstractAsyncContextManager[VllmAsyncGenerationWorker]]:
    """Starts a worker with a small engine and shuts it down whatever happens."""

    @asynccontextmanager
    async def run(
        model: Path, values: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[VllmAsyncGenerationWorker]:
        values = dict(values or {})
        engine = {**_ENGINE, **values.pop("engine", {})}
        sampling = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, **values.pop("sampling", {})}
        worker = VllmAsyncGenerationWorker({"model": str(model), "engine": engine, "sampling": sampling, **values}, **options)
        try:
            await worker.post_init_async()
            yield worker
        finally:
            await worker.shutdown()

    return run


def share_of_equal_tokens(one: Sequence[Generated], other: Sequence[Generated]) -> float:
    """How many tokens are the same, from 0 to 1."""
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a.tokens, b.tokens, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def largest_difference(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """The largest absolute difference between logprobs."""
    return max(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


@pytest.fixture(scope="session")
def lab() -> Any:
    """The helpers above, for test modules (which importlib mode keeps from importing them)."""
    import types

    return types.SimpleNamespace(
        PROMPTS=PROMPTS,
        NEW_TOKENS=NEW_TOKENS,
        Reference=Reference,
        batch_of=batch_of,
        generate=generate,
        largest_difference=largest_difference,
        share_of_equal_tokens=share_of_equal_tokens,
    )
