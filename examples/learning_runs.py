"""One run of ``learning_curves.py``: a task, a trainer, and a line of figures for each step."""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_CAPITALS = (
    "France Paris, Japan Tokyo, Italy Rome, Spain Madrid, Germany Berlin, England London, Russia Moscow, China Beijing, "
    "Egypt Cairo, Greece Athens, Austria Vienna, Portugal Lisbon, Ireland Dublin, Poland Warsaw, Norway Oslo, Cuba Havana"
)
_OPPOSITES = "hot cold, big small, up down, day night, left right, good bad, happy sad, open closed"
_SUMS = "1 1 2, 2 2 4, 2 3 5, 3 3 6, 4 5 9, 5 5 10, 6 2 8, 10 10 20"
#: By question, the answer: one word.
QUESTIONS = {
    **{"What is the capital of {}?".format(*pair.split()): pair.split()[1] for pair in _CAPITALS.split(", ")},
    **{"What is the opposite of {}?".format(*pair.split()): pair.split()[1] for pair in _OPPOSITES.split(", ")},
    **{"What is {} plus {}?".format(*row.split()): row.split()[2] for row in _SUMS.split(", ")},
    "What colour is the sky?": "blue",
    "What colour is grass?": "green",
    "What colour is snow?": "white",
    "What colour is a banana?": "yellow",
    "Which planet do we live on?": "Earth",
    "Which animal barks?": "dog",
    "Which day comes after Monday?": "Tuesday",
    "Which month comes after May?": "June",
}
#: Not 1, so that logprobs before temperature differ from those of what was sampled.
TEMPERATURES = {"answers": 0.7, "vowels": 1.0}
LEARNING_RATE, LORA_LEARNING_RATE = 2e-5, 2e-4
NEW_TOKENS = 24
LENGTH = 128  # of a prompt with its response, in tokens
CACHE_BYTES = 1 << 30  # of an engine's KV cache, of a fixed size because runs share a GPU
CLIP = 0.2
#: Of each step, with TRL's names for them.
_TRL = {
    "reward": "reward",
    "difference": "sampling/sampling_logp_difference/mean",
    "ratio": "sampling/importance_sampling_ratio/mean",
    "grad_norm": "grad_norm",
    "entropy": "entropy",
}
#: What every run reports of each step, and what our loop does beside.
METRICS = (*_TRL, "clip", "kl", "lag")
BEGUN = time.perf_counter()


@dataclass(frozen=True)
class Arm:
    """One kind of run.

    Attributes:
        label: Its name in the figure.
        task: ``answers`` or ``vowels``.
        trl: Options of TRL's configuration; None for the loop around our worker.
        lora: The trainer trains an adapter.
        given: What MODEL_QUIRKS_SET says, beside what all runs say.
        settings: Of our worker's configuration, beside those that all have.
        disable: Quirks that are switched off.
        autocast: Dtype of our loop's products.
        float32_head: Our loop's head computes in float32.
    """

    label: str
    task: str = "answers"
    trl: dict[str, Any] | None = None
    lora: bool = False
    given: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    disable: tuple[str, ...] = ()
    autocast: str = "bfloat16"
    float32_head: bool = False


def reward(text: str, answer: str, task: str) -> float:
    """Returns how good a text is.

    Of ``answers`` the share of the words that are the answer, which counts once; of ``vowels``, which no question asks for, the
    share of the words that begin with a vowel, of at least four.
    """
    words = re.findall(r"\w+", text.lower())
    if task == "vowels":
        return sum(word[0] in "aeiou" for word in words) / max(len(words), 4)
    return (answer.lower() in words) / len(words) if words else 0.0


def chat(question: str) -> list[dict[str, str]]:
    """Returns a question as a conversation."""
    return [{"role": "user", "content": question}]


def questions(count: int, seed: int) -> Iterator[list[str]]:
    """Yields the questions of each step, endlessly: all of them in random order, and then once more."""
    generator, deck = random.Random(seed), []  # noqa: S311 - not a secret
    while True:
        while len(deck) < count:
            deck += generator.sample(list(QUESTIONS), len(QUESTIONS))
        yield [deck.pop(0) for _ in range(count)]


def add(file: Path, **values: Any) -> None:
    """Appends a line, with the seconds since the process began."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**values, "s": round(time.perf_counter() - BEGUN, 1)}) + "\n")


# ---- TRL, as it is


def train_with_trl(arm: Arm, seed: int, options: argparse.Namespace, file: Path) -> None:
    """Trains with TRL, unmodified, with vLLM in colocate mode under the hook."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Recorder(TrainerCallback):
        def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any], **_: Any) -> None:
            if "reward" in logs:
                add(file, step=state.global_step, **{key: float(logs[name]) for key, name in _TRL.items() if name in logs})

    def rewards(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [reward(text, wanted, arm.task) for text, wanted in zip(texts, answer, strict=True)]

    adapter = None
    if arm.lora:
        from peft import LoraConfig

        adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    rows = [{"prompt": chat(question), "answer": answer} for question, answer in QUESTIONS.items()]
    with tempfile.TemporaryDirectory(prefix="learning-curves-") as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            max_steps=options.steps,
            per_device_train_batch_size=options.prompts * options.group,
            num_generations=options.group,
            max_completion_length=NEW_TOKENS,
            temperature=TEMPERATURES[arm.task],
            learning_rate=LORA_LEARNING_RATE if arm.lora else LEARNING_RATE,
            lr_scheduler_type="constant",
            seed=seed,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=LENGTH,
            vllm_gpu_memory_utilization=0.05,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **(arm.trl or {}),
        )
        GRPOTrainer(
            str(options.model),
            reward_funcs=rewards,
            args=config,
            train_dataset=Dataset.from_list(rows),
            callbacks=[Recorder()],
            peft_config=adapter,
        ).train()


# ---- a loop around our worker, with the next rollout in flight while the trainer updates


class Policy:
    """The model that is trained beside our worker, with its tokenizer and optimiser."""

    def __init__(self, model: Path, device: str, arm: Arm) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.device, self.tokenizer, self._arm = device, AutoTokenizer.from_pretrained(model), arm
        self.pad = self.tokenizer.eos_token_id  # lengths tell padding apart, and not every tokenizer has a token for it
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).train()
        self.model.gradient_checkpointing_enable()  # as TRL does by default; runs that share a GPU share its memory
        self._optimiser = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        self._scaler = torch.amp.GradScaler(device, enabled=arm.autocast == "float16" and device == "cuda")

    def prompts(self, asked: Sequence[str], group: int) -> dict[str, Any]:
        """Returns the questions as token ids, each `group` times: ``input_ids`` [B, S], ``input_lengths`` [B]."""
        import torch

        chats = [chat(question) for question in asked for _ in range(group)]
        encoded = self.tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)["input_ids"]
        rows = [torch.tensor(row) for row in encoded]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad)
        return {"input_ids": ids, "input_lengths": torch.tensor([len(row) for row in rows])}

    def _distribution(self, ids: Any, mask: Any) -> Any:
        """Returns the logprobs of all tokens where the mask is true, [N, V] float32."""
        import torch

        products = getattr(torch, self._arm.autocast)
        with torch.autocast(self.device, products) if products != torch.float32 else nullcontext():
            hidden = self.model.model(ids, use_cache=False).last_hidden_state[:, :-1][mask]
            with torch.autocast(self.device, enabled=False) if self._arm.float32_head else nullcontext():
                hidden = hidden.float() if self._arm.float32_head else hidden
                logits = self.model.lm_head(hidden).float() / TEMPERATURES[self._arm.task]
        return logits.log_softmax(-1)

    def update(self, batch: dict[str, Any], answers: Sequence[str], group: int, version: int) -> dict[str, float]:
        """Takes one step of GRPO on a rollout; returns the metrics, from before the step."""
        import torch
        from grpo_tiny import advantages, grpo_loss, response_mask

        mask, ids = response_mask(batch), batch["output_ids"]
        texts = [self.tokenizer.decode(row[1:][kept], skip_special_tokens=True) for row, kept in zip(ids, mask, strict=True)]
        score = torch.tensor([reward(*pair, self._arm.task) for pair in zip(texts, answers, strict=True)])
        mask, ids, old = (values.to(self.device) for values in (mask, ids, batch["logprobs"][:, 1:]))
        logprobs = self._distribution(ids, mask)
        entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
        chosen = logprobs.gather(-1, ids[:, 1:][mask][:, None])[:, 0]
        new = chosen.new_zeros(mask.shape).masked_scatter(mask, chosen)
        self._optimiser.zero_grad()
        self._scaler.scale(grpo_loss(new, old, advantages(score, group).to(self.device), mask)).backward()
        self._scaler.unscale_(self._optimiser)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._scaler.step(self._optimiser)
        self._scaler.update()
        apart = (new.detach() - old)[mask]
        ratio = apart.exp()
        spans = [span for row in batch["weight_versions"] for span in row]
        lag = sum((version - int(label)) * (end - start) for label, start, end in spans) / max(int(mask.sum()), 1)
        found = {
            "reward": score.mean(),
            "difference": apart.abs().mean(),
            "ratio": ratio.mean(),
            "grad_norm": norm,
            "entropy": entropy,
            "clip": ((ratio - 1).abs() > CLIP).float().mean(),
            "kl": (ratio - 1 - apart).mean(),
        }
        return {**{key: float(value) for key, value in found.items()}, "lag": lag}


def configuration(arm: Arm, options: argparse.Namespace, *, on_gpu: bool) -> dict[str, Any]:
    """Returns the configuration of our worker."""
    engine = {"enforce_eager": True, "max_model_len": LENGTH, "max_num_seqs": options.prompts * options.group}
    if on_gpu:
        engine |= {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": CACHE_BYTES}
    sampling = {"temperature": TEMPERATURES[arm.task], "max_new_tokens": NEW_TOKENS}
    rest = {section: values for section, values in arm.settings.items() if section != "engine"}
    return {"model": str(options.model), "engine": engine | arm.settings.get("engine", {}), "sampling": sampling, **rest}


async def train_with_worker(arm: Arm, seed: int, options: argparse.Namespace, file: Path) -> None:
    """Trains with our worker: the next rollout runs while the trainer updates, and its requests live through the refit."""
    import torch

    from worker import VllmAsyncGenerationWorker
    from worker.batch import collate

    torch.manual_seed(seed)
    policy = Policy(options.model, "cuda" if torch.cuda.is_available() else "cpu", arm)
    config = configuration(arm, options, on_gpu=policy.device == "cuda")
    worker = VllmAsyncGenerationWorker(config, seed=seed, disable=arm.disable)
    decks = questions(options.prompts, seed)

    async def rollout(asked: Sequence[str]) -> dict[str, Any]:
        samples = [sample async for sample in worker.generate_async(policy.prompts(asked, options.group))]
        return collate(samples, pad_token_id=policy.pad)

    try:
        await worker.post_init_async()
        await worker.refit_async(policy.model, version="0")
        asked = next(decks)
        running = asyncio.create_task(rollout(asked))
        for step in range(1, options.steps + 1):
            batch, answers = await running, [QUESTIONS[question] for question in asked for _ in range(options.group)]
            asked = next(decks)
            running = asyncio.create_task(rollout(asked))
            found = await asyncio.to_thread(policy.update, batch, answers, options.group, step - 1)
            await worker.refit_async(policy.model, version=str(step))
            add(file, step=step, **found)
        await running
    finally:
        await worker.shutdown()
