"""Which share of a policy's values one optimizer step changes, as an engine sees them: what a sparse refit can save.

A trained model, SmolLM2 with 135 million parameters, learns by AdamW: by policy gradients on its own rollouts, as in GRPO
(four answers to each question, the reward prefers short ones), or from text, this repository's documentation::

    python benchmarks/changed.py --steps 12

Masters in float32 that come from a bfloat16 checkpoint start in the middle of what rounds to their value, and have to leave it
first; after many steps they lie anywhere in it. ``spread`` is that: the same masters, moved once by a random part of it.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from worker.lab.trained import trained_model

_QUESTIONS = (
    "Tell me a story about a fox.",
    "What is the capital of France?",
    "Why is the sky blue?",
    "How do I cook rice?",
    "Name three animals that live in the sea.",
    "What is 17 plus 25?",
)
_ANSWERS, _TOKENS, _TEXTS = 4, 16, 2
#: One row of so many of each matrix is looked at, after the first step and after so many at the end.
_ROWS, _LOOKED_AT = 8, 3
#: Elements of a word that is sent whole if one of them changed.
_WORDS = (1, 2, 4)


class _Views:
    """What an engine gets of the masters, their casts; and which shares of it changed, at each look."""

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = model.named_parameters()
        self._named = [(name, tensor.detach()[:: _ROWS if tensor.ndim > 1 else 1]) for name, tensor in parameters]
        self._moved: dict[str, torch.Tensor] = {}
        if self._named[0][1].dtype is torch.float32:
            self._moved = {name: _part_of_rounding(tensor) for name, tensor in self._named}
        self.shares: dict[tuple[str, int, str], list[float]] = defaultdict(list)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Notes what changes meanwhile."""
        before = {(view, name): value for view, name, value in self._casts()}
        yield
        changed: dict[tuple[str, int, str], int] = defaultdict(int)
        numbers: dict[tuple[str, int, str], int] = defaultdict(int)
        for view, name, value in self._casts():
            is_other = value != before[view, name]
            for elements in _WORDS:
                words = is_other.view(-1, elements).any(1)
                for kind in ("all", _kind(name)):
                    changed[view, elements, kind] += int(words.sum())
                    numbers[view, elements, kind] += len(words)
        for key, number in numbers.items():
            self.shares[key].append(changed[key] / number)

    def _casts(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        for name, tensor in self._named:
            masters = {"": tensor}
            if self._moved:
                masters[", spread"] = tensor + self._moved[name]
            for ending, master in masters.items():
                for dtype in (torch.bfloat16, torch.float16):
                    yield str(dtype).removeprefix("torch.") + ending, name, master.to(dtype, copy=True)


def _part_of_rounding(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a random part of what rounds to the same bfloat16, around zero."""
    generator = torch.Generator().manual_seed(0)
    step = torch.exp2(tensor.float().abs().clamp_min(1e-30).log2().floor() - 7)
    return (torch.rand(tensor.shape, generator=generator) - 0.5) * step


def _kind(name: str) -> str:
    return next((kind for kind in ("embed", "attn", "mlp") if kind in name), "norm")


def _rollouts(model: Any, tokenizer: Any, step: int) -> torch.Tensor:
    """The loss of one step of GRPO: the model answers, short answers get the better reward."""
    question = _QUESTIONS[step % len(_QUESTIONS)]
    chat = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    start = ids["input_ids"].shape[1]
    options = {"max_new_tokens": _TOKENS, "do_sample": True, "num_return_sequences": _ANSWERS, "pad_token_id": 0}
    tokens = model.generate(**ids, **options)
    answers = tokenizer.batch_decode(tokens[:, start:], skip_special_tokens=True)
    rewards = torch.tensor([-float(len(answer)) for answer in answers])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    logprobs = model(tokens).logits[:, start - 1 : -1].float().log_softmax(-1).gather(2, tokens[:, start:, None])[..., 0]
    mask = (tokens[:, start:] != 0).float()
    return -(advantages[:, None] * logprobs * mask).sum() / mask.sum()


def _text(model: Any, tokenizer: Any, step: int) -> torch.Tensor:
    """The loss on some of the repository's own text."""
    pages = sorted(Path(__file__).parents[1].glob("docs/*.md"))
    tokens = tokenizer(pages[step % len(pages)].read_text(encoding="utf-8"), return_tensors="pt")["input_ids"][0]
    size = min(64, len(tokens) // _TEXTS)
    batch = tokens[: _TEXTS * size].view(_TEXTS, size)
    return model(batch, labels=batch).loss


def _runs(steps: int, rates: list[float], dtypes: list[str], objectives: list[str]) -> Iterator[str]:
    """Trains, and yields rows of a Markdown table."""
    folder = trained_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    yield "| masters | objective | rate | engine | step 1 | later | words of 2 | words of 4 | embed | attn | mlp | norm |"
    yield "|" + "---|" * 12
    for dtype, objective, rate in ((d, o, r) for d in dtypes for o in objectives for r in rates):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        views = _Views(model)
        for step in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "float32"):
                loss = (_rollouts if objective == "rollouts" else _text)(model, tokenizer, step)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with views.looking() if step == 0 or step >= steps - _LOOKED_AT else nullcontext():
                optimizer.step()
            optimizer.zero_grad()
        for view in sorted({view for view, _, _ in views.shares}):
            later = {key[1:]: statistics.median(found[1:]) for key, found in views.shares.items() if key[0] == view}
            cells = [views.shares[view, 1, "all"][0], later[1, "all"], later[2, "all"], later[4, "all"]]
            cells += [later[1, kind] for kind in ("embed", "attn", "mlp", "norm")]
            yield f"| {dtype} | {objective} | {rate:g} | {view} | {' | '.join(f'{100 * cell:.3g} %' for cell in cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 5e-6, 2e-5])
    parser.add_argument("--masters", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--objectives", nargs="+", default=["rollouts", "text"])
    options = parser.parse_args()
    for row in _runs(options.steps, options.rates, options.masters, options.objectives):
        print(row, flush=True)
