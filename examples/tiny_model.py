"""A tiny checkpoint that half knows the answers to some questions, for evaluations that run anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from worker.lab.kit import checkpoints

#: Names that stand for a tiny model, and the kind of checkpoint that is made for each.
KINDS = {"tiny": "qwen3", "tiny-moe": "qwen3_moe"}
TAUGHT = 0.5  # it learns until it gives a right answer with this probability, so what an evaluation must find is known before
MOST_STEPS = 500  # the shipped questions take 20 to 30
LEARNING_RATE = 1e-3


def make_tiny(kind: str, folder: Path, questions: Sequence[tuple[str, str]], seed: int) -> float:
    """Writes a checkpoint and its tokenizer.

    Args:
        kind: One of `worker.lab.kit.checkpoints.KINDS`.
        folder: Where to.
        questions: Prompts with their answers. It is taught what it will be asked: this is no lesson about models.
        seed: Of its weights; the same seed and questions make the same checkpoint.

    Returns:
        The probability of a right answer at temperature 1, mean over the questions.
    """
    checkpoints.build(kind, folder, seed=seed)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    ids, taught = lesson(questions, AutoTokenizer.from_pretrained(folder))
    for step in range(MOST_STEPS + 1):
        logprobs = model(ids, use_cache=False).logits[:, :-1].log_softmax(dim=-1).gather(-1, ids[:, 1:, None])[..., 0] * taught
        right = float(logprobs.detach().sum(dim=1).exp().mean())
        if right >= TAUGHT or step == MOST_STEPS:  # before the update: it is the probability under the weights that are saved
            break
        optimiser.zero_grad()
        (-logprobs.sum() / taught.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    model.save_pretrained(folder)
    return right


def lesson(questions: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerBase) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids of prompts with answers, [B, S], and which are taught, [B, S-1] from the second token: the answers."""
    pairs = [
        (tokenizer(prompt).input_ids, [*tokenizer(answer).input_ids, tokenizer.eos_token_id]) for prompt, answer in questions
    ]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt + answer) for prompt, answer in pairs], batch_first=True)
    masks = [torch.tensor([0] * len(prompt) + [1] * len(answer)) for prompt, answer in pairs]
    return ids, torch.nn.utils.rnn.pad_sequence(masks, batch_first=True)[:, 1:]
