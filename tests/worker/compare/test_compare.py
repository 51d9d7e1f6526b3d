"""Comparisons of two dumps that no engine made: rows, logprobs, settings, causes, and what is refused."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from worker.lab.compare.compare import compare


@pytest.fixture
def a(dumped):
    return dumped()


@pytest.fixture
def b(dumped, row, a):
    """Makes the candidate: with one row in place of A's, or with the logprobs of one kind lower; it has scored A's tokens."""

    def make(*other, place=0, lower="", scored=False, **fields):
        rows = list(a.rows)
        if other:
            rows[place] = row(rows[place].kind, rows[place].prompt, rows[place].seed, *other)
        for index, item in enumerate(rows):
            if item.kind == lower:
                rows[index] = item.model_copy(update={"logprobs": tuple(value - 0.5 for value in item.logprobs)})
        return dumped(tuple(rows), scored_for=a if scored else None, **fields)

    return make


# ---- rows


def test_logprobs_are_compared_up_to_the_first_other_token(a, b) -> None:
    found = compare(a, b((4, 1, 8, 3), (-1.0, -1.25, -50.0, -50.0), place=2)).kind("sampled")

    assert (found.diverged, found.identical, found.tokens, found.equal_tokens) == ((2, None), 1, 6, 4)
    assert (found.metrics["tokens"], found.metrics["max_abs_delta"]) == (4, 0.25)
    assert found.worst[0].note == "prompt 0, seed 0"


def test_all_tokens_that_b_has_scored_are_compared(a, b) -> None:
    found = compare(a, b((8, 8, 8), scored=True, shift=0.125)).kind("teacher-forced")

    assert (found.rows, found.tokens, found.metrics["max_abs_delta"]) == (4, 11, 0.125)
    assert compare(a, b((8, 8, 8))).kind("teacher-forced") is None


def test_a_sequence_that_fills_the_context_is_compared(a) -> None:
    """Without its last token, which is not scored."""
    short = {a.digest: tuple(values[:-1] for values in a.scored[a.digest])}

    assert compare(a, a.model_copy(update={"scored": short})).kind("teacher-forced").tokens == 11 - 4


# ---- verdict


def test_rows_without_equal_tokens_fail_if_nothing_else_counts(a, dumped) -> None:
    rows = tuple(item.model_copy(update={"tokens": (99, *item.tokens[1:])}) for item in a.rows)

    assert compare(a, dumped(rows, scored_for=a)).passed
    assert not compare(a, dumped(rows)).passed


# ---- settings and causes


def test_if_prefill_agrees_the_meaning_is_the_first_cause(a, b) -> None:
    raw = {"model_config.logprobs_mode": "raw_logprobs", "cache_config.enable_prefix_caching": False, "acme.colour": "blue"}

    found = compare(a, b(lower="sampled", scored=True, effective={**a.effective, **raw}))

    assert [(cause.name, cause.concern) for cause in found.causes] == [
        ("model_config.logprobs_mode", "meaning"),
        ("cache_config.enable_prefix_caching", "computation"),
    ]
    assert "sampled tokens: look at what a logprob means" in found.reading
    assert found.kind("sampled").metrics["mean_delta"] == 0.5  # positive where the reference gives more


def test_if_prefill_differs_computation_is_the_first_cause(a, b) -> None:
    other = {"model_config.logprobs_mode": "raw_logprobs", "compilation_config.mode": "VLLM_COMPILE"}

    found = compare(a, b((8, 5, 6), scored=True, shift=0.5, effective={**a.effective, **other}))

    assert [cause.name for cause in found.causes] == ["compilation_config.mode", "model_config.logprobs_mode"]
    assert "scored at once by prefill: the weights, their dtype or the kernels differ" in found.reading


def test_without_prefill_the_reading_says_how_to_find_out_more(a, b) -> None:
    assert "--tokens-of A" in compare(a, b((8, 5, 6), lower="sampled")).reading


def test_more_other_rows_than_rounding_explains_are_other_draws(dumped, row) -> None:
    def sampled(*tokens, count=8):
        return tuple(row("sampled", 0, seed, tokens) for seed in range(count))

    same, first, last = range(40), (99, *range(1, 40)), (*range(39), 99)
    a = dumped(sampled(*same))

    exact = compare(a, dumped(sampled(*first), scored_for=a))
    noisy = compare(a, dumped(sampled(*last), scored_for=a, shift=0.02))
    few = compare(a, dumped((*sampled(*first, count=2), *sampled(*same)[2:]), scored_for=a))

    assert "draws other random numbers from the same seeds" in exact.reading
    assert "about equally probable" in noisy.reading
    assert "about equally probable" in few.reading


@pytest.mark.parametrize(
    ("name", "value", "counts"),
    [
        ("cache_config.cache_dtype", "auto", False),
        ("cache_config.cache_dtype", "fp8", True),
        ("scheduler_config.async_scheduling", False, False),
        ("scheduler_config.async_scheduling", True, True),
        ("attention_config.of_some_other_model", 3, False),
    ],
)
def test_a_setting_of_one_version_is_a_cause_if_it_is_known(name, value, counts, a, dumped) -> None:
    found = compare(a, dumped(effective={**a.effective, name: value}))

    assert [cause.name for cause in found.causes] == ([name] if counts else [])
    assert [change.name for change in found.effective] == [name]


# ---- what cannot be compared


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"config_digest": "other", "model": "big"}, r"different models: 'tiny' .* and 'big'"),
        ({"config_digest": "other", "prompts": ((1, 2, 3), (7, 9))}, r"different models.*different prompts .* is number 1\)"),
        ({"seed": 2}, "different seeds or numbers"),
    ],
)
def test_incomparable_dumps_are_refused_with_all_reasons(fields, message, a, dumped, row) -> None:
    rows = (*a.rows[:3], row("sampled", 1, fields.pop("seed", 1), (5, 5)))

    with pytest.raises(UsageError, match=message):
        compare(a, dumped(rows, **fields))
