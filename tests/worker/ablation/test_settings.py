"""What is tried instead of what is in force, and how a configuration is changed. No engine runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quirks_core.plugins.planning import PlanOptions, make_plan
from worker import GenerationConfig
from worker.lab.attribution.settings import SETTINGS, InForce, changed

_OFF = {"quirks": {"disable": ["all"]}}
HEADS = ("engine.head_dtype", "train.head_dtype", "engine.head_dtype + train.head_dtype")
_SWITCHES = ("enable_prefix_caching", "async_scheduling", "enable_chunked_prefill")
#: Configurations between which every setting has every value that is ever tried.
RUNS: dict[str, dict[str, Any]] = {
    "nothing typed": {},
    "one side": {
        "engine": {
            **dict.fromkeys(_SWITCHES, True), "enforce_eager": False, "logprobs_mode": "raw_logprobs", "dtype": "bfloat16",
            "head_dtype": "float32", "kv_cache_dtype": "fp8", "generation_config": "auto", "load_format": "dummy",
        },
        "refit": {"scope": "parameters", "clear_cache": True},
        "train": {"dtype": "bfloat16", "attn_implementation": "sdpa"},
    },
    "the other": {
        "engine": {
            **dict.fromkeys(_SWITCHES, False), "enforce_eager": True, "logprobs_mode": "processed_logprobs", "dtype": "float16",
            "head_dtype": "float32", "kv_cache_dtype": "auto", "generation_config": "vllm", "load_format": "auto",
        },
        "refit": {"scope": "state_dict", "clear_cache": False},
        "train": {"dtype": "float16", "head_dtype": "float32", "attn_implementation": "eager"},
        "env": {"VLLM_BATCH_INVARIANT": "1"},
    },
    "logits": {"engine": {"logprobs_mode": "raw_logits", "dtype": "half"}, **_OFF},
    "served": {"purpose": "serve"},
}  # fmt: skip


@pytest.fixture
def folder(model: Callable[..., Path]) -> Path:
    """A model folder with what is looked at."""
    made = model(dtype="bfloat16")
    (made / "generation_config.json").write_text("{}", encoding="utf-8")
    return made


@pytest.fixture
def in_force(folder: Path) -> Callable[..., InForce]:
    """What a configuration comes to with the installed quirks."""

    def build(values: dict[str, Any], *, platform: str | None = None, engine: dict[str, Any] | None = None) -> InForce:
        config = GenerationConfig.parse({"model": str(folder), **values})
        assume = [f"platform=={platform}"] if platform else []
        return InForce.of(config, make_plan(config, PlanOptions.gather(config, assume=assume)), engine)

    return build


def tried(now: InForce, name: str) -> list[Any]:
    """The values that one setting gives to try; of several paths, tuples."""
    return [value[0] if len(value) == 1 else value for value in SETTINGS[name].tries(now)]


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("run", RUNS)
def test_every_value_to_try_is_a_change_that_can_be_typed(run, platform, in_force, folder):
    config = GenerationConfig.parse({"model": str(folder), **RUNS[run]})
    now = in_force(RUNS[run], platform=platform)

    found = [(setting, values) for setting in SETTINGS.values() for values in setting.tries(now)]

    assert found
    for setting, values in found:
        other = changed(config, dict(zip(setting.paths, values, strict=True)))
        typed = {**other.slots(), **{f"env.{name}": value for name, value in other.env.items()}}
        assert tuple(typed[path] for path in setting.paths) == values
        assert all(value != now.value(path) for path, value in zip(setting.paths, values, strict=True))


def test_every_setting_has_something_to_try_in_some_run(in_force):
    runs = [in_force(values, platform="cuda") for values in RUNS.values()]
    runs.append(in_force({"engine": {"dtype": "bfloat16"}, "train": {"dtype": "bfloat16"}}))

    assert [name for name in SETTINGS if not any(tried(now, name) for now in runs)] == []


@pytest.mark.parametrize(
    ("name", "left_open"),
    [("TORCHDYNAMO_DISABLE", []), ("TORCH_COMPILE_DISABLE", [True])],  # with the first, a quirk makes the engine eager
)
def test_compiled_code_is_tried_only_where_torch_may_compile(name, left_open, in_force, monkeypatch):
    eager = {"engine": {"enforce_eager": True}}
    before = tried(in_force(eager), "engine.enforce_eager")

    monkeypatch.setenv(name, "1")

    assert before == [False]
    assert [tried(in_force(values), "engine.enforce_eager") for values in (eager, {})] == [[], left_open]


@pytest.mark.parametrize(
    ("engine", "train", "expected"),
    [
        # dtype is bfloat16; engine's head, trainer's head, both
        (None, None, (["float32"], ["float32"], [("float32", "float32")])),
        ("float32", None, (["model"], ["float32"], [])),
        ("model", "float32", (["float32"], ["model"], [])),
        ("float32", "float32", (["model"], ["model"], [("model", "model")])),
    ],
)
def test_heads_are_tried_in_every_combination_except_as_they_are(engine, train, expected, in_force):
    now = in_force({"engine": {"head_dtype": engine}, "train": {"head_dtype": train}, **_OFF})

    assert tuple(tried(now, name) for name in HEADS) == expected


def test_an_engine_s_dtype_from_float32_is_as_it_reports(in_force, model):
    model(dtype="float32")
    asked = {"quirks": {"disable": ["float32-checkpoint-downcast"]}}

    assert tried(in_force({"train": {"dtype": "float32"}}), "engine.dtype") == ["bfloat16"]  # that quirk makes it float32
    now = in_force(asked, engine={"engine.dtype": "bfloat16", "engine.head_dtype": "bfloat16"})

    assert tried(in_force(asked), "engine.dtype") == ["float32", "bfloat16"]
    assert (tried(now, "engine.dtype"), tried(now, "train.dtype")) == (["float32"], ["float32"])
    assert tried(now, "engine.head_dtype + train.head_dtype") == [("float32", "float32")]


@pytest.mark.parametrize(
    ("values", "settings"),
    [({"purpose": "eval"}, ["refit.scope", "refit.clear_cache"]), ({"engine": {"dtype": "float"}}, HEADS)],
    ids=["a run without refits", "a model in float32"],
)
def test_a_setting_that_cannot_matter_is_not_tried(values, settings, in_force):
    assert [name for name in settings if tried(in_force(values), name)] == []


@pytest.mark.parametrize(
    ("values", "engine", "expected"),
    [
        (_OFF, {}, False),
        (_OFF, {"engine.enable_prefix_caching": False}, True),
        ({"engine": {"enable_prefix_caching": True}}, {"engine.enable_prefix_caching": False}, False),
    ],
)
def test_what_the_engine_reports_counts_where_nobody_asked(values, engine, expected, in_force):
    assert tried(in_force(values, engine=engine), "engine.enable_prefix_caching") == [expected]


def test_a_checkpoint_without_defaults_for_requests_leaks_none(in_force, folder):
    before = tried(in_force({}), "engine.generation_config")

    (folder / "generation_config.json").unlink()

    assert before != []
    assert tried(in_force({}), "engine.generation_config") == []
