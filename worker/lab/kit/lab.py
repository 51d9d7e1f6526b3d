"""What a scenario gets: tiny checkpoints, small real engines, transformers as the reference, and comparers.

A scenario is the evidence of one quirk, an ``async def scenario(lab: Lab) -> Outcome`` beside its declaration. ``quirks
prove`` runs it with and without the quirk, each time in a process of its own; the switches are in the environment, where
the worker reads them, so the scenario itself never says which of the two runs it is::

    async def scenario(lab: Lab) -> Outcome:
        model = lab.checkpoint("gemma4")
        trainer = lab.trainer(model)
        async with lab.worker(model) as worker:
            await worker.refit_async(trainer)
            return lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.records import Plan, RefusedError
from quirks_core.plugins.planning import make_plan
from worker.lab.kit import checkpoints

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from worker.async_worker import VllmAsyncGenerationWorker

#: Token ids of the prompts, of different lengths.
PROMPTS: tuple[tuple[int, ...], ...] = (
    tuple(range(3, 27)),
    (100, 200, 300, 400, 50, 60, 70),
    tuple((7 * i * i + 11) % 500 + 5 for i in range(40)),
)
#: Tokens generated from each prompt.
NEW_TOKENS = 24

_ENGINE = {"enforce_eager": True, "dtype": "float32", "max_model_len": 256}
_SAMPLING = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
#: How many tokens of the first prompt that differs an outcome shows.
_SHOWN = 8
#: Nats by which two greedy tokens may differ and be both right: ten times what float32 kernels are apart.
TIE = 1e-4

_ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compilation takes longer than everything else
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the CPU build's default is nearly all memory
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class CannotShowError(Exception):
    """A scenario can show nothing on this machine, with the quirk or without; the message says what it needs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario saw, short enough that two of them stand side by side."""

    passed: bool  #: whether everything is as it should be
    measure: str  #: what was looked at
    got: str  #: what was seen
    expected: str  #: what should have been seen


@dataclass(frozen=True, slots=True)
class Generated:
    """What a model made of one prompt."""

    tokens: tuple[int, ...]  #: G token ids
    logprobs: tuple[float, ...]  #: G logprobs, one per token


class Lab:
    """A folder of checkpoints, and the ways to run them.

    Attributes:
        folder: Where the checkpoints are; shared by the runs of one proof.
        plans: The plan of every worker that was made, in order, also of a refused one. They tell whether the quirk was on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plans: list[Plan] = []

    def checkpoint(self, kind: str, seed: int = 0) -> Path:
        """Returns a tiny random checkpoint, made when it is first asked for.

        Args:
            kind: One of `worker.lab.kit.checkpoints.KINDS`.
            seed: Seed of its weights.

        Raises:
            ValueError: The kind is unknown.
        """
        target = self.folder / f"{kind}-{seed}"
        if not target.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as temporary:  # a killed run must not leave half a checkpoint
                checkpoints.build(kind, Path(temporary) / kind, seed=seed).rename(target)
        return target

    def plan(self, model: Path, values: Mapping[str, Any] | None = None) -> Plan:
        """Makes the plan that `worker` would carry out, without an engine.

        Args:
            model: The checkpoint.
            values: Configuration over that of a small engine.
        """
        config = GenerationConfig.parse(configuration(model, values))
        self.plans.append(make_plan(config))
        return self.plans[-1]

    @asynccontextmanager
    async def worker(
        self, model: Path, values: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[VllmAsyncGenerationWorker]:
        """Starts a worker with a small engine (float32, 256 tokens long) and shuts it down whatever happens.

        Args:
            model: The checkpoint.
            values: Configuration over that of the small engine, in the form of a configuration file.
            **options: Further arguments of the worker.

        Raises:
            RefusedError: The plan refuses the run.
            EngineStartError: The engine died while it started.
        """
        from worker.async_worker import VllmAsyncGenerationWorker

        try:
            worker = VllmAsyncGenerationWorker(configuration(model, values), **options)
        except RefusedError:
            self.plan(model, values)  # a refused worker takes its plan with it
            raise
        self.plans.append(worker.plan)
        try:
            await worker.post_init_async()
            yield worker
        finally:
            await worker.shutdown()

    @contextmanager
    def llm(self, model: Path, **arguments: Any) -> Iterator[Any]:
        """Starts vLLM's own ``LLM`` in this process, as a trainer without our worker does, with the plan of a rollout.

        Call it after `reference` and `trainer`: vLLM changes classes of transformers.

        Args:
            model: The checkpoint.
            **arguments: Engine arguments over those of the small engine.
        """
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs

        from quirks_core import quirks_for

        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        with quirks_for(EngineArgs(model=str(model), **_ENGINE, **arguments), purpose="rollout") as applied:
            self.plans.append(applied.plan)
            yield LLM.from_engine_args(applied.engine_args)

    def greedy_of(self, llm: Any) -> list[Generated]:
        """Generates greedily from `PROMPTS` with the engine that `llm` gave."""
        return [Generated(tokens, ()) for tokens in self.tokens_of(llm, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)]

    def tokens_of(self, llm: Any, **sampling: Any) -> list[tuple[int, ...]]:
        """Generates from `PROMPTS` with the engine that `llm` gave; the arguments are those of vLLM's ``SamplingParams``."""
        from vllm import SamplingParams

        params = SamplingParams(detokenize=False, **sampling)
        rows = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in PROMPTS], params, use_tqdm=False)
        return [tuple(row.outputs[0].token_ids) for row in rows]

    def weights(self, model: Path) -> dict[str, torch.Tensor]:
        """Reads the tensors of a checkpoint."""
        from safetensors.torch import load_file

        return {name: tensor for file in sorted(model.glob("*.safetensors")) for name, tensor in load_file(file).items()}

    def write(self, folder: Path, weights: Mapping[str, torch.Tensor], name: str = "model.safetensors") -> None:
        """Writes tensors into a folder that vLLM's ``reload_weights`` can read."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(weights), folder / name, metadata={"format": "pt"})

    def engine(self, worker: VllmAsyncGenerationWorker) -> Any:
        """Returns vLLM's engine behind a running worker, for what no public call shows."""
        return worker.engine.llm

    async def greedy(self, worker: VllmAsyncGenerationWorker) -> list[Generated]:
        """Generates greedily from `PROMPTS`, `NEW_TOKENS` tokens each unless the worker is configured otherwise."""
        return await generated(worker, PROMPTS, greedy=True)

    async def sample(self, worker: VllmAsyncGenerationWorker) -> list[Generated]:
        """Samples from `PROMPTS`, as the worker's configuration says."""
        return await generated(worker, PROMPTS)

    def trainer(self, model: Path) -> PreTrainedModel:
        """Returns the checkpoint as a transformers model in float32, on the CPU."""
        import torch
        from transformers import AutoModelForCausalLM

        trainer: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        return trainer

    def reference(self, model: Path | PreTrainedModel) -> list[Generated]:
        """Generates greedily from `PROMPTS` with transformers, `NEW_TOKENS` tokens each.

        The whole sequence is computed anew for each token, so that no cache can be wrong.
        """
        import torch

        trainer = self.trainer(model) if isinstance(model, Path) else model
        rows = [list(prompt) for prompt in PROMPTS]
        with torch.no_grad():
            for row in rows:
                for _ in range(NEW_TOKENS):
                    row.append(int(trainer(torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
        found = [Generated(tuple(row[len(prompt) :]), ()) for row, prompt in zip(rows, PROMPTS, strict=True)]
        return self.rescored(trainer, found)

    def rescored(self, trainer: PreTrainedModel, generated: Sequence[Generated], temperature: float = 1.0) -> list[Generated]:
        """Returns the same tokens with the trainer's logprobs: those of softmax(logits / temperature).

        Args:
            trainer: The model.
            generated: What was made of each of `PROMPTS`.
            temperature: Divides the logits.
        """
        pairs = zip(PROMPTS, generated, strict=True)
        return [Generated(row.tokens, _logprobs(trainer, prompt, row.tokens, temperature)) for prompt, row in pairs]

    def same_tokens(
        self,
        got: Sequence[Generated],
        expected: Sequence[Generated],
        measure: str = "greedy tokens equal to transformers'",
        *,
        tie: float = TIE,
    ) -> Outcome:
        """Passes if all tokens are the same up to a near tie; shows the first prompt where they are not.

        Kernels sum in an order that depends on the CPU and on the batch, so either of two tokens that are almost equally
        probable is right, and what follows them cannot be compared. Without logprobs all tokens must be the same.
        """
        pairs = list(zip(got, expected, strict=True))
        total = sum(len(row.tokens) for row in expected)
        equal = sum(a == b for x, y in pairs for a, b in zip(x.tokens, y.tokens, strict=False))
        different = [(x, y) for x, y in pairs if x.tokens != y.tokens and not _part_at_a_tie(x, y, tie)]
        passed = not different
        shown, wanted = (different or pairs)[0]
        return Outcome(passed, measure, f"{equal} of {total}: {_short(shown)}", f"{total} of {total}: {_short(wanted)}")

    def close_logprobs(
        self,
        got: Sequence[Generated],
        expected: Sequence[Generated],
        *,
        tolerance: float = 1e-3,
        measure: str = "largest difference to the trainer's logprobs",
    ) -> Outcome:
        """Passes if no logprob is further than `tolerance` (in nats) from the expected one.

        Raises:
            ValueError: The two have different numbers of logprobs.
        """
        pairs = zip(got, expected, strict=True)
        # `max` would pass over a NaN that is not first.
        differences = [abs(a - b) for x, y in pairs for a, b in zip(x.logprobs, y.logprobs, strict=True)]
        passed = all(difference <= tolerance for difference in differences)
        return Outcome(passed, measure, f"{max(differences):.2g}", f"at most {tolerance:g}")


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Makes engines small, quiet and offline, where the environment leaves it open; call it before vLLM is imported."""
    for name, value in _ENVIRONMENT.items():
        environ.setdefault(name, value)


def configuration(model: Path, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the configuration of a small engine (float32, 256 tokens long), with other values over it."""
    values = dict(values or {})
    engine = {**_ENGINE, **values.pop("engine", {})}
    sampling = {**_SAMPLING, **values.pop("sampling", {})}
    return {"model": str(model), "engine": engine, "sampling": sampling, **values}


async def generated(
    worker: VllmAsyncGenerationWorker, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int] = (), **how: Any
) -> list[Generated]:
    """Generates from prompts and returns the results in their order.

    Args:
        worker: The running worker.
        prompts: Token ids of each.
        seeds: A seed for each; none if empty.
        **how: Further arguments of `generate_async`.
    """
    batch = {**batch_of(prompts), **({"seeds": list(seeds)} if seeds else {})}
    found: dict[int, Generated] = {}
    async for index, output in worker.generate_async(batch, **how):
        new = slice(len(prompts[index]), None)
        found[index] = Generated(tuple(output["output_ids"][0, new].tolist()), tuple(output["logprobs"][0, new].tolist()))
    return [found[index] for index in range(len(prompts))]


def batch_of(prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Puts prompts into the form that `generate_async` takes.

    Returns:
        ``input_ids`` [B, S] int64, padded on the right with 0; ``input_lengths`` [B] int64.
    """
    from worker.batch import padded

    return padded(prompts)


def _logprobs(trainer: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], temperature: float) -> tuple[float, ...]:
    import torch

    with torch.no_grad():
        logits = trainer(torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0, len(prompt) - 1 : -1].double()
    chosen = torch.tensor(tokens)[:, None]
    return tuple((logits / temperature).log_softmax(-1).gather(1, chosen)[:, 0].tolist())


def _part_at_a_tie(one: Generated, other: Generated, tie: float) -> bool:
    """Whether greedy tokens differ first where both are the most probable ones, and all logprobs up to there are the same."""
    if not one.logprobs or not other.logprobs or len(one.tokens) != len(other.tokens):
        return False
    until = 1 + next(at for at, pair in enumerate(zip(one.tokens, other.tokens, strict=True)) if pair[0] != pair[1])
    return all(abs(a - b) <= tie for a, b in zip(one.logprobs[:until], other.logprobs[:until], strict=True))


def _short(row: Generated) -> str:
    shown = " ".join(map(str, row.tokens[:_SHOWN]))
    return f"{shown} …" if len(row.tokens) > _SHOWN else shown
