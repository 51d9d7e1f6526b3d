"""The prompts of a run as token ids, checked before any engine starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quirks_core.base.errors import UsageError, words
from quirks_core.configuration.sections import ModelSection
from quirks_core.facts.model import ModelFacts

#: Used if the user names no file: different lengths, languages and kinds of text.
TEXTS = (
    "Explain in two sentences why the sky is blue during the day and red in the evening.",
    "Solve step by step: a train leaves at 9:40 and arrives at 13:05. How long does it travel?",
    "def fibonacci(n: int) -> int:\n    ",
    "Die drei wichtigsten Zutaten für ein gutes Brot sind",
    "List the prime numbers below fifty, separated by commas:",
    "user: What is the capital of Australia?\nassistant:",
    "If x + y = 10 and x - y = 4, then x times y equals",
    "Once upon a time, in a village by the sea, there lived an old clockmaker who",
)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts and the tokenizer that made them."""

    rows: tuple[tuple[int, ...], ...]  #: token ids of each prompt
    tokenizer: Any = None  #: a transformers tokenizer; None if the model has none

    def decode(self, ids: Sequence[int]) -> str | None:
        """Returns the tokens as text; None without a tokenizer."""
        return None if self.tokenizer is None else str(self.tokenizer.decode(list(ids)))

    def check(self, longest: int, new_tokens: int) -> None:
        """Makes sure that every prompt fits with its new tokens into the longest sequence that the engine takes.

        Raises:
            UsageError: Some do not; all are named.
        """
        if wrong := [f"{index} ({len(row)} tokens)" for index, row in enumerate(self.rows) if len(row) + new_tokens > longest]:
            raise UsageError(
                f"prompts {', '.join(wrong)} leave no room for {new_tokens} new tokens below engine.max_model_len = {longest}; "
                "shorten them, raise engine.max_model_len, or generate fewer (--tokens)"
            )

    def long(self, length: int, count: int) -> tuple[tuple[int, ...], ...]:
        """Returns prompts of exactly that many tokens, made by joining these; each begins with another one."""
        found = []
        for first in range(count):
            start = first % len(self.rows)
            joined = [token for row in (*self.rows[start:], *self.rows[:start]) for token in row]
            found.append(tuple((joined * (length // len(joined) + 1))[:length]))
        return tuple(found)


def load_prompts(model: ModelSection, *, file: Path | None = None) -> Prompts:
    """Reads prompts.

    Args:
        model: The model, and whose tokenizer it has.
        file: Texts, one per line, or JSON lines with ``prompt`` or ``prompt_token_ids``; `TEXTS` if None.

    Raises:
        UsageError: The file cannot be read, or prompts are empty or hold tokens that the model does not have; all are named.
    """
    tokenizer, problem = _tokenizer(model.tokenizer or model.path, model.revision)
    vocab_size = ModelFacts.read(model.path, model.revision).text_config.get("vocab_size")
    rows = _encoded(TEXTS if file is None else _read(file), tokenizer, problem)
    if isinstance(vocab_size, int):
        _check_vocabulary(rows, tokenizer, vocab_size)
    return Prompts(tuple(map(tuple, rows)), tokenizer)


def _tokenizer(name: str, revision: str | None) -> tuple[Any, str]:
    """The tokenizer, or None and why there is none."""
    try:
        from transformers import AutoTokenizer

        found = AutoTokenizer.from_pretrained(name, revision=revision)
        # Without a tokenizer's files, transformers may create a tokenizer with an empty vocabulary.
        return (found, "") if found.encode("a", add_special_tokens=False) else (None, "the one found has an empty vocabulary")
    except Exception as error:  # transformers raises errors of many kinds
        return None, words(error)


def _read(file: Path) -> list[Any]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"prompts {file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise UsageError(f"prompts {file} holds no prompt; write one per line")
    if file.suffix != ".jsonl":
        return [line for _, line in numbered]
    items, problems = [], []
    for number, line in numbered:
        try:
            row = json.loads(line)
            ids = row.get("prompt_token_ids")
            items.append(row["prompt"] if ids is None else [int(token) for token in ids])
        except (ValueError, KeyError, AttributeError, TypeError):
            problems.append(str(number))
    if problems:
        raise UsageError(
            f"prompts {file}: lines {', '.join(problems)} are not JSON objects with 'prompt' (a text) or 'prompt_token_ids'"
        )
    return items


def _encoded(items: Sequence[Any], tokenizer: Any, problem: str) -> list[list[int]]:
    if tokenizer is None and any(isinstance(item, str) for item in items):
        raise UsageError(f"texts need a tokenizer, and there is none ({problem}); give prompt_token_ids in a .jsonl file")
    rows = [list(tokenizer.encode(item)) if isinstance(item, str) else item for item in items]
    if empty := [str(index) for index, row in enumerate(rows) if not row]:
        raise UsageError(f"prompts {', '.join(empty)} are empty")
    return rows


def _check_vocabulary(rows: Sequence[Sequence[int]], tokenizer: Any, vocab_size: int) -> None:
    if wrong := [str(index) for index, row in enumerate(rows) if not all(0 <= token < vocab_size for token in row)]:
        known = f" (the tokenizer knows {len(tokenizer)})" if tokenizer is not None else ""
        raise UsageError(
            f"prompts {', '.join(wrong)} hold token ids outside 0..{vocab_size - 1}, the model's vocabulary{known}; "
            "the tokenizer is another model's: set model.tokenizer"
        )
