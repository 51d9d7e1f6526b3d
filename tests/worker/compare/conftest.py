"""Dumps made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from worker.lab.compare.dump import Dump, Row


def _dump(rows: tuple[Row, ...] | None = None, *, scored_for: Dump | None = None, shift: float = 0.0, **fields: Any) -> Dump:
    """A dump that has scored its own rows, all tokens -1; those of another dump too, lower by `shift`."""
    given = (
        ("greedy", 0, None, (4, 5, 6)),
        ("greedy", 1, None, (9, 9)),
        ("sampled", 0, 0, (4, 1, 2, 3)),
        ("sampled", 1, 1, (5, 5)),
    )
    values: dict[str, Any] = {
        "date": "2026-11-21T20:00:00+00:00", "model": "tiny", "model_type": "qwen3", "config_digest": "c",
        "platform": "cpu", "versions": {"vllm": "0.30.0", "torch": "2.13.0"}, "plan": "p",
        "quirks": ("double-bos",), "receipt": {"digest": "p", "processes": ()},
        "settings": {"engine.dtype": "float32", "sampling.temperature": 0.7},
        "effective": {
            "cache_config.enable_prefix_caching": True, "compilation_config.mode": "NONE",
            "model_config.logprobs_mode": "processed_logprobs",
        },
        "prompts": ((1, 2, 3), (7, 8)), "rows": rows or tuple(_row(*item) for item in given),
    }  # fmt: skip
    dump = Dump(**{**values, **fields})
    scored = {dump.digest: tuple((-1.0,) * len(item.tokens) for item in dump.rows)}
    if scored_for is not None:
        scored[scored_for.digest] = tuple((-1.0 - shift,) * len(item.tokens) for item in scored_for.rows)
    return dump.model_copy(update={"scored": scored})


def _row(kind: Any, prompt: int, seed: int | None, tokens: tuple[int, ...], logprobs: tuple[float, ...] = ()) -> Row:
    """A row; every logprob is -1 unless they are given."""
    return Row(kind=kind, prompt=prompt, seed=seed, tokens=tokens, logprobs=logprobs or (-1.0,) * len(tokens))


@pytest.fixture(scope="session")
def dumped() -> Callable[..., Dump]:
    """Makes a dump."""
    return _dump


@pytest.fixture(scope="session")
def row() -> Callable[..., Row]:
    """Makes a row."""
    return _row
