"""The settings of the ladder: what is tried instead of what is in force, and how a configuration is changed. No engine runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quirks_core import Registry, RunContext, UsageError
from quirks_core.switches import Switches, Wishes
from worker import GenerationConfig
from worker.parity.settings import SETTINGS, InForce, changed

#: Configurations between which every setting has every value that the ladder knows.
RUNS: dict[str, dict[str, Any]] = {
    "nothing typed": {},
    "one side": {
        "engine": {
            "logprobs_mode": "raw_logprobs",
            "enable_prefix_caching": True,
            "async_scheduling": True,
            "enable_chunked_prefill": True,
            "enforce_eager": False,
            "dtype": "bfloat16",
            "head_dtype": "float32",
            "kv_cache_dtype": "fp8",
            "generation_config": "auto",
            "load_format": "dummy",
        },
        "refit": {"scope": "parameters", "clear_cache": True},
        "train": {"dtype": "bfloat16", "attn_implementation": "sdpa"},
    },
    "the other": {
        "engine": {
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": False,
            "async_scheduling": False,
            "enable_chunked_prefill": False,
            "enforce_eager": True,
            "dtype": "float16",
            "head_dtype": "float32",
            "kv_cache_dtype": "auto",
            "generation_config": "vllm",
            "load_format": "auto",
        },
        "refit": {"scope": "state_dict", "clear_cache": False},
        "train": {"dtype": "float16", "head_dtype": "float32", "attn_implementation": "eager"},
        "env": {"VLLM_BATCH_INVARIANT": "1"},
    },
    "logits": {"engine": {"logprobs_mode": "raw_logits", "dtype": "half"}, "quirks": {"disable": ["all"]}},
    "served": {"purpose": "serve"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with what `tries` looks at."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "dtype": "bfloat16"}), encoding="utf-8")
    (tmp_path / "generation_config.json").write_text("{}", encoding="utf-8")
    return tmp_path


@pytest.fixture
def in_force(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., InForce]:
    """What a configuration comes to with the installed quirks."""
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "VLLM_BATCH_INVARIANT"):
        monkeypatch.delenv(name, raising=False)

    def build(values: dict[str, Any], *, platform: str | None = None, engine: dict[str, Any] | None = None) -> InForce:
        config = GenerationConfig.parse({"model": str(folder), **values})
        context = RunContext.gather(config, assume=[f"platform=={platform}"] if platform else [])
        switches = Switches.gather(config_file=Wishes(config.quirks.disable))
        return InForce.of(config, Registry.load().resolve(context, switches), engine)

    return build


def tried(now: InForce, name: str) -> list[Any]:
    """The values that one setting gives to try; of several paths, tuples."""
    values = [values for values, _ in SETTINGS[name].tries(now)]
    return [value[0] if len(value) == 1 else value for value in values]


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("run", RUNS)
def test_no_value_to_try_is_in_force_and_all_can_be_typed(run, platform, in_force, folder):
    config = GenerationConfig.parse({"model": str(folder), **RUNS[run]})
    now = in_force(RUNS[run], platform=platform)

    found = [(setting, values) for setting in SETTINGS.values() for values, _ in setting.tries(now)]

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


def test_a_change_types_its_path_and_nothing_else(folder):
    config = GenerationConfig.parse({"model": str(folder), "engine": {"seed": 7}, "env": {"NCCL_DEBUG": "INFO"}})

    other = changed(config, {"engine.dtype": "float32", "env.VLLM_BATCH_INVARIANT": "1"})

    assert other.typed_slots() == {"engine.seed", "engine.dtype"}
    assert (other.engine.seed, other.engine.dtype) == (7, "float32")
    assert other.env == {"NCCL_DEBUG": "INFO", "VLLM_BATCH_INVARIANT": "1"}
    assert config.engine.dtype is None


def test_a_key_of_vllm_that_was_typed_under_vllm_kwargs_is_changed_in_its_own_place(folder):
    config = GenerationConfig.parse(
        {"model": str(folder), "engine": {"vllm_kwargs": {"enforce_eager": True, "block_size": 16}}}
    )

    other = changed(config, {"engine.enforce_eager": False})

    assert other.engine.enforce_eager is False
    assert other.engine.vllm_kwargs == {"block_size": 16}


def test_none_leaves_a_key_open(folder):
    config = GenerationConfig.parse({"model": str(folder), "engine": {"dtype": "float32", "seed": 7}})

    other = changed(config, {"engine.dtype": None})

    assert other.typed_slots() == {"engine.seed"}


def test_a_change_that_the_configuration_does_not_take_is_a_usage_error(folder):
    config = GenerationConfig.parse({"model": str(folder)})

    with pytest.raises(UsageError, match=r"engine\.dtyp: unknown key; did you mean 'dtype'\?"):
        changed(config, {"engine.dtyp": "float32"})


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_compiled_code_is_tried_only_where_the_environment_lets_torch_compile(name, in_force, monkeypatch):
    eager = {"engine": {"enforce_eager": True}}
    before = tried(in_force(eager), "engine.enforce_eager")

    monkeypatch.setenv(name, "1")

    assert before == [False]
    assert tried(in_force(eager), "engine.enforce_eager") == []
    assert tried(in_force({}), "engine.enforce_eager") == [True]


def test_batch_invariance_is_tried_on_cuda_alone_and_if_the_installed_vllm_has_it(in_force, monkeypatch):
    cuda = in_force({}, platform="cuda")
    on_cuda, on_cpu = tried(cuda, "env.VLLM_BATCH_INVARIANT"), tried(in_force({}, platform="cpu"), "env.VLLM_BATCH_INVARIANT")

    monkeypatch.setattr("worker.parity.settings.sources.search", lambda *_: False)

    assert (on_cuda, on_cpu) == (["1"], [])
    assert tried(cuda, "env.VLLM_BATCH_INVARIANT") == []


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
def test_heads_are_tried_alone_and_together_but_never_as_they_are(engine, train, expected, in_force):
    values = {"engine": {"head_dtype": engine}, "train": {"head_dtype": train}, "quirks": {"disable": ["all"]}}

    now = in_force(values)

    names = ("engine.head_dtype", "train.head_dtype", "engine.head_dtype + train.head_dtype")
    assert tuple(tried(now, name) for name in names) == expected


def test_a_model_in_float32_has_no_other_head(in_force):
    now = in_force({"engine": {"dtype": "float"}})

    assert [name for name in SETTINGS if "head_dtype" in name and tried(now, name)] == []


def test_a_trainer_whose_dtype_is_open_has_that_of_the_engine(in_force):
    now = in_force({"engine": {"dtype": "float32"}})

    assert tried(now, "train.dtype") == ["bfloat16"]


def test_a_checkpoint_in_float32_leaves_the_dtype_of_the_engine_unknown(in_force, folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "dtype": "float32"}), encoding="utf-8")

    assert tried(in_force({}), "engine.dtype") == ["float32", "bfloat16"]


def test_refits_are_tried_only_where_a_trainer_refits(in_force):
    names = ("refit.scope", "refit.clear_cache")

    assert [bool(tried(in_force({}), name)) for name in names] == [True, True]
    assert [tried(in_force({"purpose": "eval"}), name) for name in names] == [[], []]


def test_a_scope_that_an_earlier_refit_would_hide_takes_a_restart(in_force):
    narrow = in_force({"refit": {"scope": "parameters"}})
    wide = in_force({"refit": {"scope": "state_dict"}})

    assert list(SETTINGS["refit.scope"].tries(narrow)) == [(("state_dict",), "refit")]
    assert list(SETTINGS["refit.scope"].tries(wide)) == [(("parameters",), "restart")]


def test_what_the_engine_reports_counts_where_nobody_asked(in_force):
    name = "engine.enable_prefix_caching"
    off = {"quirks": {"disable": ["all"]}}

    assert tried(in_force(off), name) == [False]
    assert tried(in_force(off, engine={name: False}), name) == [True]
    assert tried(in_force({"engine": {"enable_prefix_caching": True}}, engine={name: False}), name) == [False]


@pytest.mark.parametrize("dtype", [None, "auto"])
def test_the_dtype_that_the_engine_took_by_itself_is_the_one_in_force(dtype, in_force, folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "dtype": "float32"}), encoding="utf-8")
    asked = {"engine": {"dtype": dtype}}

    now = in_force(asked, engine={"engine.dtype": "bfloat16", "engine.head_dtype": "bfloat16"})

    assert (tried(now, "engine.dtype"), tried(now, "train.dtype")) == (["float32"], ["float32"])
    assert tried(now, "engine.head_dtype + train.head_dtype") == [("float32", "float32")]


def test_a_cache_that_nobody_asks_to_clear_is_kept(in_force):
    assert tried(in_force({"quirks": {"disable": ["all"]}}), "refit.clear_cache") == [True]
    assert tried(in_force({"refit": {"clear_cache": True}}), "refit.clear_cache") == [False]


def test_a_checkpoint_without_defaults_for_requests_cannot_leak_any(in_force, folder):
    before = tried(in_force({}), "engine.generation_config")

    (folder / "generation_config.json").unlink()

    assert before != []
    assert tried(in_force({}), "engine.generation_config") == []


def test_the_cache_is_kept_in_full_only_if_it_is_not(in_force):
    name = "engine.kv_cache_dtype"

    assert tried(in_force({"engine": {"kv_cache_dtype": "fp8"}}), name) == ["auto"]
    assert tried(in_force({"engine": {"kv_cache_dtype": "bfloat16"}}), name) == []
    assert tried(in_force({}), name) == []


def test_every_setting_says_on_one_line_why_it_matters_and_where_that_is_known_from():
    for setting in SETTINGS.values():
        assert setting.why, setting.name
        assert "\n" not in setting.why, setting.name
        assert setting.source.startswith("https://"), setting.name
