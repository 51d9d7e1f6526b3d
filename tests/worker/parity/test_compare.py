"""What a comparison of two dumps says: rows, logprobs, settings, causes, and what it refuses. The dumps are made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from quirks_core.errors import UsageError
from quirks_core.registry import Registry
from worker.parity import causes
from worker.parity.compare import Comparison, compare
from worker.parity.dump import Dump, Row

PROMPTS = ((1, 2, 3), (7, 8))
EFFECTIVE = {
    "cache_config.enable_prefix_caching": True,
    "compilation_config.mode": "NONE",
    "model_config.logprobs_mode": "processed_logprobs",
}


def row(kind: str, prompt: int, tokens: tuple[int, ...], logprobs: tuple[float, ...] = (), seed: int | None = None) -> Row:
    """A row; every logprob is -1 unless they are given."""
    return Row(kind=kind, prompt=prompt, seed=seed, tokens=tokens, logprobs=logprobs or (-1.0,) * len(tokens))  # type: ignore[arg-type]


ROWS = (
    row("greedy", 0, (4, 5, 6)),
    row("greedy", 1, (9, 9)),
    row("sampled", 0, (4, 1, 2, 3), seed=0),
    row("sampled", 1, (5, 5), seed=1),
)


def made(rows: tuple[Row, ...] = ROWS, *, scored_for: Dump | None = None, shift: float = 0.0, **fields: Any) -> Dump:
    """A dump that has scored its own rows, all tokens -1; those of another dump too, lower by `shift`."""
    values: dict[str, Any] = {
        "date": "2026-11-21T20:00:00+00:00",
        "model": "tiny",
        "model_type": "qwen3",
        "config_digest": "c",
        "weights_digest": "w",
        "platform": "cpu",
        "versions": {"vllm": "0.30.0", "torch": "2.13.0"},
        "plan": "p",
        "quirks": ("v1-runtime",),
        "settings": {"engine.dtype": "float32", "sampling.temperature": 0.7},
        "effective": EFFECTIVE,
        "prompts": PROMPTS,
        "rows": rows,
    }
    dump = Dump(**{**values, **fields})
    scored = {dump.digest: tuple((-1.0,) * len(item.tokens) for item in rows)}
    if scored_for is not None:
        scored[scored_for.digest] = tuple((-1.0 - shift,) * len(item.tokens) for item in scored_for.rows)
    return dump.model_copy(update={"scored": scored})


def shifted(by: float, kind: str) -> tuple[Row, ...]:
    """The rows with all logprobs of one kind lower."""
    return tuple(
        item.model_copy(update={"logprobs": tuple(value - by for value in item.logprobs)}) if item.kind == kind else item
        for item in ROWS
    )


# ---- rows


def test_equal_dumps_agree_in_everything() -> None:
    found = compare(made(), made())

    assert found.passed
    assert [(kind.kind, kind.rows, kind.identical, kind.tokens, kind.equal_tokens) for kind in found.kinds] == [
        ("greedy", 2, 2, 5, 5),
        ("sampled", 2, 2, 6, 6),
        ("teacher-forced", 4, 4, 11, 11),
    ]
    assert (found.effective, found.settings, found.versions, found.quirks, found.causes) == ((), (), (), (), ())
    assert "same tokens in all 4 rows" in found.reading


def test_logprobs_are_compared_up_to_the_first_token_that_differs_and_no_further() -> None:
    a = made()
    others = (ROWS[0], ROWS[1], row("sampled", 0, (4, 1, 8, 3), (-1.0, -1.25, -50.0, -50.0), seed=0), ROWS[3])

    found = compare(a, made(others)).kind("sampled")

    assert found is not None
    assert (found.diverged, found.identical, found.tokens, found.equal_tokens) == ((2, None), 1, 6, 4)
    assert found.share == 4 / 6
    assert found.metrics["tokens"] == 4
    assert found.metrics["max_abs_delta"] == 0.25
    assert found.worst[0].note == "prompt 0, seed 0"


@pytest.mark.parametrize(("theirs", "where"), [((4, 5), 2), ((4, 5, 6, 7), 3), ((), 0)])
def test_a_row_that_ends_before_the_other_parts_from_it_there(theirs: tuple[int, ...], where: int) -> None:
    found = compare(made(), made((row("greedy", 0, theirs), *ROWS[1:]))).kind("greedy")

    assert found is not None
    assert found.diverged == (where, None)


def test_a_delta_is_positive_where_the_reference_gives_more() -> None:
    found = compare(made(), made(shifted(0.5, "greedy"))).kind("greedy")

    assert found is not None
    assert found.metrics["mean_delta"] == 0.5


def test_a_logprob_that_is_no_number_fails() -> None:
    bad = (row("greedy", 0, (4, 5, 6), (-1.0, math.nan, -1.0)), *ROWS[1:])

    found = compare(made(), made(bad))

    assert not found.passed
    assert found.kinds[0].metrics["nonfinite"] == 1


def test_all_of_a_s_tokens_are_compared_though_sampling_parted() -> None:
    a = made()
    others = (row("greedy", 0, (8, 8, 8)), *ROWS[1:])

    found = compare(a, made(others, scored_for=a, shift=0.125)).kind("teacher-forced")

    assert found is not None
    assert (found.rows, found.tokens) == (4, 11)
    assert found.metrics["max_abs_delta"] == 0.125


def test_without_a_s_tokens_scored_by_b_there_is_no_teacher_forced_comparison() -> None:
    others = (row("greedy", 0, (8, 8, 8)), *ROWS[1:])

    assert compare(made(), made(others)).kind("teacher-forced") is None


def test_a_sequence_that_fills_the_context_is_compared_without_its_last_token() -> None:
    a = made()
    short = {a.digest: tuple(values[:-1] for values in a.scored[a.digest])}

    found = compare(a, a.model_copy(update={"scored": short})).kind("teacher-forced")

    assert found is not None
    assert found.tokens == 11 - 4


# ---- verdict


def test_a_crossed_threshold_fails_and_a_wider_one_of_the_user_s_does_not() -> None:
    a, b = made(), made(shifted(0.5, "sampled"))

    assert not compare(a, b).passed
    wide = ("mean_abs_delta<=1", "mean_exp_abs_delta<=2", "mean_abs_dprob<=1", "kl_k1=1", "kl_k3<=1")
    assert compare(a, b, thresholds=wide).passed
    assert compare(a, b).kinds[0].level == "ok"


def test_rows_that_part_at_once_fail_only_if_nothing_else_was_compared() -> None:
    a = made()
    others = tuple(item.model_copy(update={"tokens": (99, *item.tokens[1:])}) for item in ROWS)

    assert compare(a, made(others, scored_for=a)).passed
    assert not compare(a, made(others)).passed


def test_unknown_profiles_and_metrics_are_usage_errors() -> None:
    with pytest.raises(UsageError, match=r"no profile 'float23'.*did you mean 'float32'"):
        compare(made(), made(), profile="float23")
    with pytest.raises(UsageError, match="no metric"):
        compare(made(), made(), thresholds=("max_abs_dleta=1",))


# ---- settings and causes


def test_settings_that_one_side_alone_has_are_told_from_those_that_are_open() -> None:
    a = made(effective={"x": None, "only_a": 1})
    b = made(effective={"x": 2, "only_b": None})

    found = compare(a, b).effective

    assert [(change.name, change.a, change.b, change.missing) for change in found] == [
        ("only_a", 1, None, "b"),
        ("only_b", None, None, "a"),
        ("x", None, 2, None),
    ]


def test_versions_settings_and_quirks_that_differ_are_listed() -> None:
    b = made(
        versions={"vllm": "0.32.0", "torch": "2.13.0"},
        quirks=("v1-runtime", "rollout-logprobs-processed"),
        settings={"engine.dtype": "bfloat16", "sampling.temperature": 0.7},
    )

    found = compare(made(), b)

    assert [(change.name, change.a, change.b) for change in found.versions] == [("vllm", "0.30.0", "0.32.0")]
    assert [(change.name, change.missing) for change in found.quirks] == [("rollout-logprobs-processed", "a")]
    assert [change.name for change in found.settings] == ["engine.dtype"]


def changed(**values: Any) -> dict[str, Any]:
    """The settings with others in place of some; ``__`` stands for a dot."""
    return {**EFFECTIVE, **{name.replace("__", "."): value for name, value in values.items()}}


def test_where_prefill_agrees_what_a_logprob_means_is_the_likeliest_cause() -> None:
    a = made()
    settings = changed(
        model_config__logprobs_mode="raw_logprobs", cache_config__enable_prefix_caching=False, acme__colour="blue"
    )

    found = compare(a, made(shifted(0.5, "sampled"), scored_for=a, effective=settings))

    assert [(cause.name, cause.concern, cause.slot) for cause in found.causes] == [
        ("model_config.logprobs_mode", "meaning", "engine.logprobs_mode"),
        ("cache_config.enable_prefix_caching", "computation", "engine.enable_prefix_caching"),
    ]
    assert "agree on the same tokens" in found.reading
    assert "sampled tokens: look at what a logprob means" in found.reading


def test_where_prefill_disagrees_the_computation_is_the_likeliest_cause() -> None:
    a = made()
    settings = changed(model_config__logprobs_mode="raw_logprobs", compilation_config__mode="VLLM_COMPILE")
    b = made(((row("greedy", 0, (8, 5, 6))), *ROWS[1:]), scored_for=a, shift=0.5, effective=settings)

    found = compare(a, b)

    assert [cause.name for cause in found.causes] == ["compilation_config.mode", "model_config.logprobs_mode"]
    assert "scored at once by prefill: the weights, their dtype or the kernels differ" in found.reading


def test_without_prefill_the_reading_says_how_to_find_out_more() -> None:
    others = (row("greedy", 0, (8, 5, 6)), *shifted(0.5, "sampled")[1:])

    assert "--tokens-of A" in compare(made(), made(others)).reading


def test_rows_that_part_within_the_limits_are_no_failure() -> None:
    found = compare(made(), made((row("greedy", 0, (4, 8, 6)), *ROWS[1:])))

    assert found.passed
    assert "1 of 4 rows part" in found.reading


def many(tokens: tuple[int, ...], count: int = 8) -> tuple[Row, ...]:
    """Sampled rows."""
    return tuple(row("sampled", 0, tokens, seed=seed) for seed in range(count))


def test_more_sampled_rows_that_part_than_rounding_explains_were_drawn_otherwise() -> None:
    same, first, last = tuple(range(40)), (99, *range(1, 40)), (*range(39), 99)
    a = made(many(same))

    exact = compare(a, made(many(first), scored_for=a))
    noisy = compare(a, made(many(last), scored_for=a, shift=0.02))
    few = compare(a, made((*many(first, 2), *many(same)[2:]), scored_for=a))

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
def test_a_setting_that_one_version_alone_has_is_a_cause_only_if_it_is_on_and_known_by_name(
    name: str, value: Any, counts: bool
) -> None:
    found = compare(made(), made(effective={**EFFECTIVE, name: value}))

    assert [cause.name for cause in found.causes] == ([name] if counts else [])
    assert [change.name for change in found.effective] == [name]


def test_a_cause_names_the_quirks_that_set_it_and_where_they_are_in_force() -> None:
    registry = Registry.load()

    quirks = causes.quirks_that_set("engine.logprobs_mode", registry, {"rollout-logprobs-processed"}, set())

    assert [(quirk.id, quirk.state) for quirk in quirks] == [("rollout-logprobs-processed", "in force in A")]
    assert causes.quirks_that_set("engine.vllm_kwargs", registry, (), ()) == ()


def test_every_slot_that_a_cause_names_is_a_key_of_the_configuration() -> None:
    from worker import GenerationConfig

    for name, known in causes.KNOWN.items():
        section, _, key = known.slot.partition(".")
        assert name.startswith("env.") or key in type(getattr(GenerationConfig.parse({"model": "m"}), section)).model_fields


# ---- what cannot be compared


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"config_digest": "other", "model": "big"}, r"different models: 'tiny' .* and 'big'"),
        ({"weights_digest": "other"}, "different weights of 'tiny'"),
        ({"prompts": ((1, 2, 3), (7, 9))}, r"different prompts \(2 and 2 prompts; the first that differs is number 1\)"),
        ({"rows": ROWS[:3]}, "different seeds or numbers"),
        ({"rows": (*ROWS[:3], row("sampled", 1, (5, 5), seed=2))}, "different seeds or numbers"),
    ],
)
def test_dumps_that_say_nothing_about_each_other_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(made(), made(**fields))


def test_all_reasons_are_in_the_one_refusal() -> None:
    with pytest.raises(UsageError, match=r"different models.*different prompts"):
        compare(made(), made(config_digest="other", prompts=((1,), (2,))))


def test_weights_that_one_machine_cannot_show_are_no_reason_to_refuse() -> None:
    assert compare(made(), made(weights_digest="")).passed


def test_a_comparison_comes_back_from_json(tmp_path: Path) -> None:
    found = compare(made(), made(effective=changed(model_config__logprobs_mode="raw_logprobs"), versions={}))

    (tmp_path / "comparison.json").write_text(found.model_dump_json())

    assert Comparison.model_validate_json((tmp_path / "comparison.json").read_bytes()) == found
