"""GRPO from end to end on two CPU cores: rollouts, advantages, clipped updates and a refit per step, in about a minute.

A tiny random model learns to alternate odd and even tokens. Only the model and the task are toys; the loop is that of a real
trainer. docs/worker.md walks through it.

    python examples/grpo_tiny.py --output grpo_tiny.png
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config
from transformers.utils.logging import disable_progress_bar

from quirks_core.base.errors import QuirksError
from worker import VllmAsyncGenerationWorker
from worker.batch import Batch, collate

EOS = 0  # ends a response; also fills rows to equal length, which lengths tell apart
PROMPT_TOKENS, NEW_TOKENS = 4, 8
PROMPTS, GROUP = 8, 16  # GROUP responses to each of PROMPTS prompts: 128 samples a step
PASSES = 2  # optimiser steps per rollout; from the second on the policy is not the one that sampled, so clipping matters
CLIP = 0.2
LEARNING_RATE = 5e-3
TEMPERATURE = 0.7  # not 1, so that logprobs taken before the temperature cannot pass for those of the sampled distribution
TOLERANCE = 1e-3  # nats, mean over a step's tokens; in float32 the engine and transformers agree to about 1e-6
MARGIN = 0.2  # how far the reward must rise to count as learning
ENGINE_ENVIRONMENT = {
    "PYTHONWARNINGS": "ignore::FutureWarning",  # of the engine's own dependencies
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than this whole run
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; by default the CPU build takes nearly all memory
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for --json
}


class MismatchError(RuntimeError):
    """The engine does not sample from the policy that is trained."""


@dataclass(frozen=True)
class Step:
    """What one step did: mean reward, logprob differences in nats, times in seconds."""

    step: int
    reward: float
    difference_mean: float
    difference_max: float
    rollout_s: float
    train_s: float
    refit_s: float


def make_checkpoint(folder: Path, seed: int) -> Path:
    """Writes a random two-layer model with 64 tokens; the engine takes its shape from there."""
    torch.manual_seed(seed)
    shape = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    # Heads of 32 are the smallest that vLLM's CPU attention takes.
    config = Qwen3Config(**shape, num_key_value_heads=1, head_dim=32, tie_word_embeddings=False, eos_token_id=EOS)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def make_worker(model: Path, seed: int) -> VllmAsyncGenerationWorker:
    """Configures the engine; nothing starts yet, but a configuration that cannot work is refused here."""
    engine = {
        "dtype": "float32",  # the trainer's, or the two compute different logprobs
        "enforce_eager": True,
        "max_model_len": PROMPT_TOKENS + NEW_TOKENS,
        "max_num_seqs": PROMPTS * GROUP,
        "vllm_kwargs": {"skip_tokenizer_init": True},  # prompts and responses are token ids
    }
    # No top-p or top-k: the trainer's softmax is over all tokens, so the engine's must be too. What the engine reports as
    # logprobs is settled by a quirk (rollout-logprobs-processed): those after temperature.
    sampling = {"temperature": TEMPERATURE, "max_new_tokens": NEW_TOKENS}
    config = {"model": str(model), "engine": engine, "sampling": sampling, "env": ENGINE_ENVIRONMENT}
    # The engine draws from this seed; which samples share a batch depends on timing, so two runs are alike, not equal.
    return VllmAsyncGenerationWorker(config, seed=seed)


def make_prompts(vocabulary: int, generator: torch.Generator) -> Batch:
    """Draws prompts: ``input_ids`` [B, PROMPT_TOKENS], each GROUP times, the copies side by side; ``input_lengths`` [B]."""
    ids = torch.randint(1, vocabulary, (PROMPTS, PROMPT_TOKENS), generator=generator).repeat_interleave(GROUP, dim=0)
    return {"input_ids": ids, "input_lengths": torch.full((len(ids),), PROMPT_TOKENS)}


def response_mask(batch: Batch) -> torch.Tensor:
    """Marks the generated tokens, end of sequence included, [B, S-1] from the second token; nothing else is trained on."""
    position = torch.arange(1, batch["output_ids"].shape[1])
    end = batch["unpadded_sequence_lengths"][:, None]
    return (position >= end - batch["generation_lengths"][:, None]) & (position < end)


def rewards(batch: Batch) -> torch.Tensor:
    """Share of the NEW_TOKENS tokens whose parity is not that of the token before, [B]; who ends early forgoes the rest."""
    ids = batch["output_ids"]
    right = (ids[:, 1:] % 2 != ids[:, :-1] % 2) & (ids[:, 1:] != EOS) & response_mask(batch)
    return right.sum(dim=1) / NEW_TOKENS


def advantages(reward: torch.Tensor, group: int) -> torch.Tensor:
    """How much better each response is than its group, in standard deviations, [B]: GRPO's substitute for a value model."""
    grouped = reward.view(-1, group)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (centred / (grouped.std(dim=1, keepdim=True) + 1e-4)).flatten()  # equal rewards deviate by zero and teach nothing


def trainer_logprobs(policy: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Logprobs of the tokens under the distribution that the engine samples from, [B, S-1] from the second token."""
    # Rows are padded on the right, so a causal model sees no padding before the tokens that count.
    logits = policy(ids, use_cache=False).logits[:, :-1] / TEMPERATURE
    return logits.log_softmax(dim=-1).gather(-1, ids[:, 1:, None])[..., 0]


def grpo_loss(new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The clipped surrogate, averaged over the generated tokens.

    Args:
        new: Logprobs under the policy that is trained, [B, S-1], with gradient.
        old: Logprobs under the policy that sampled, [B, S-1]: the rollout's own, not recomputed ones.
        advantage: [B].
        mask: Which tokens count, [B, S-1].
    """
    ratio = (new - old).exp()
    # The smaller of the two: to go further than CLIP in the good direction earns nothing, to go wrong always costs.
    gain = torch.minimum(ratio * advantage[:, None], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[:, None])
    return -gain[mask].mean()


def check_logprobs(new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
    """Returns how far trainer and rollout are apart before the first update: mean and largest absolute difference in nats.

    Raises:
        MismatchError: The mean is above TOLERANCE, so importance ratios would be wrong by as much.
    """
    difference = (new - old).abs()[mask]
    mean, largest = float(difference.mean()), float(difference.max())
    if not mean <= TOLERANCE:  # so that NaN does not pass
        raise MismatchError(
            f"the logprobs of rollout and trainer differ by {mean:.2g} nats on average, {largest:.2g} at most (tolerance "
            f"{TOLERANCE:g}): the engine does not sample from the policy that is trained. Look at engine.dtype, "
            "sampling.temperature, engine.logprobs_mode, and at the refit: verify_refit_async names the tensors that differ."
        )
    return mean, largest


async def rollout(worker: VllmAsyncGenerationWorker, prompts: Batch, version: str) -> Batch:
    """Generates one response to each row, all of them with the weights of that version."""
    # Samples come as they finish, so a trainer can score the first ones early; `collate` puts them back in order.
    batch = collate([sample async for sample in worker.generate_async(prompts)], pad_token_id=EOS)
    made_with = {label for spans in batch["weight_versions"] for label, _, _ in spans}
    if made_with != {version}:
        raise MismatchError(f"the rollout was made with weights of version {sorted(made_with)}, the trainer has {version!r}")
    return batch


def update(policy: PreTrainedModel, optimiser: torch.optim.Optimizer, batch: Batch) -> tuple[float, float]:
    """Takes PASSES optimiser steps on one rollout; returns what `check_logprobs` found before them."""
    mask, old = response_mask(batch), batch["logprobs"][:, 1:]
    advantage = advantages(rewards(batch), GROUP)
    with torch.no_grad():  # now, while both sides have the same weights
        found = check_logprobs(trainer_logprobs(policy, batch["output_ids"]), old, mask)
    for _ in range(PASSES):
        optimiser.zero_grad()
        grpo_loss(trainer_logprobs(policy, batch["output_ids"]), old, advantage, mask).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
    return found


async def train(worker: VllmAsyncGenerationWorker, policy: PreTrainedModel, steps: int, seed: int) -> AsyncIterator[Step]:
    """The loop: roll out, update, refit."""
    optimiser = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    await worker.refit_async(policy, version="0")  # the engine of a rollout starts from dummy weights
    for step in range(1, steps + 1):
        times = [time.perf_counter()]
        batch = await rollout(worker, make_prompts(policy.config.vocab_size, generator), version=str(step - 1))
        times.append(time.perf_counter())
        mean, largest = update(policy, optimiser, batch)
        times.append(time.perf_counter())
        # The worker pauses the engine, sends the weights, drops the KV cache that the old ones made, and resumes: in that
        # order, or a later prompt would be continued from a stale cache. Nothing is in flight here, the rollout was awaited.
        await worker.refit_async(policy, version=str(step))
        times.append(time.perf_counter())
        yield Step(step, float(rewards(batch).mean()), mean, largest, *(end - start for start, end in pairwise(times)))


async def run(options: argparse.Namespace, console: Console) -> list[Step]:
    """Starts the engine, trains with progress, and ends the engine's processes whatever happens."""
    history = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="grpo-tiny-") as folder:
        model = options.model or make_checkpoint(Path(folder), options.seed)
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        worker = make_worker(model, options.seed)
        try:
            with console.status("starting the engine …"):
                await worker.post_init_async()
            with Progress(*columns, console=console) as bar:
                task = bar.add_task("training", total=options.steps)
                async for step in train(worker, policy, options.steps, options.seed):
                    history.append(step)
                    line = f"step {step.step:3}  reward {step.reward:.3f}  logprob difference: mean {step.difference_mean:.1e}"
                    took = f"rollout {step.rollout_s:.2f} s, train {step.train_s:.2f} s, refit {step.refit_s:.2f} s"
                    console.print(f"{line}, max {step.difference_max:.1e}  {took}", highlight=False, soft_wrap=True)
                    bar.advance(task)
        finally:
            await worker.shutdown()
    return history


def rise(reward: Sequence[float]) -> float:
    """How far the mean reward of the last fifth of the steps is above that of the first fifth."""
    window = max(1, len(reward) // 5)
    return sum(reward[-window:]) / window - sum(reward[:window]) / window


def plot(history: Sequence[Step], file: Path) -> None:
    """Draws the reward, and below it how far rollout and trainer are apart."""
    from matplotlib.figure import Figure  # here: the engine's processes import this script too, and draw nothing

    figure = Figure(figsize=(8, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    steps = [step.step for step in history]
    top.plot(steps, [step.reward for step in history], marker=".")
    top.set(ylabel="mean reward", ylim=(0, 1.05), title="GRPO, tiny model, CPU")
    bottom.semilogy(steps, [step.difference_max for step in history], marker=".", label="largest")
    bottom.semilogy(steps, [step.difference_mean for step in history], marker=".", label="mean")
    bottom.axhline(TOLERANCE, linestyle="--", color="grey", label="tolerance of the mean")
    bottom.set(xlabel="step", ylabel="|rollout - trainer| logprob, nats")
    bottom.legend()
    figure.savefig(file, format="png", dpi=100)


def main() -> int:
    """Returns 0 if the reward rose, 1 if it did not or if something failed, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="rollouts, each with its updates and its refit (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, prompts and sampling (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("grpo_tiny.png"), help="the plot (default: grpo_tiny.png)")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint to start from (default: a random one, made here)")
    parser.add_argument("--json", action="store_true", help="print the figures of every step as JSON to standard output")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2: the last reward is compared with the first")
    if not options.output.absolute().parent.is_dir():  # said now, not after the run
        parser.error(f"--output: there is no folder {options.output.parent}")
    console = Console(stderr=True)
    disable_progress_bar()  # transformers' own, for loading a model of a few kilobytes
    torch.set_num_threads(1)  # so small a model gains nothing from a second thread, and the engine needs the cores
    began = time.perf_counter()
    try:
        history = asyncio.run(run(options, console))
    except (MismatchError, QuirksError) as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    plot(history, options.output)
    rose, seconds = rise([step.reward for step in history]), time.perf_counter() - began
    if options.json:
        summary = {"seed": options.seed, "rise": rose, "seconds": seconds, "plot": str(options.output)}
        Console(soft_wrap=True).print_json(data={**summary, "steps": [asdict(step) for step in history]})
    verdict = "the reward rose" if rose >= MARGIN else f"the reward did not rise by {MARGIN}"
    console.print(f"{verdict}: {rose:+.3f} in {seconds:.0f} s; plot: {options.output}", highlight=False, soft_wrap=True)
    return 0 if rose >= MARGIN else 1


if __name__ == "__main__":  # the engine spawns processes, and each of them imports this file
    sys.exit(main())
