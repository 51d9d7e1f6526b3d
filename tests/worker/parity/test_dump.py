"""What a dump's file promises, which of an engine's settings it holds, and what decides on how the engine is started."""

from __future__ import annotations

import enum
import json
import math
import os
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quirks_core.errors import UsageError
from worker import GenerationConfig
from worker.parity import effective as module
from worker.parity.dump import DUMP_FORMAT, Dump, Row, digest, prepared
from worker.parity.effective import effective, variables


def made(**fields: Any) -> Dump:
    """A dump of two rows from one prompt."""
    values: dict[str, Any] = {
        "date": "2026-11-21T20:00:00+00:00",
        "model": "tiny",
        "model_type": "qwen3",
        "config_digest": "c",
        "platform": "cpu",
        "versions": {"vllm": "0.32.0"},
        "plan": "p",
        "quirks": ("v1-runtime",),
        "settings": {"sampling.temperature": 0.7},
        "effective": {"cache_config.block_size": 16},
        "prompts": ((1, 2, 3),),
        "rows": (
            Row(kind="greedy", prompt=0, tokens=(4, 5), logprobs=(-0.5, -0.25)),
            Row(kind="sampled", prompt=0, seed=7, tokens=(4, 6), logprobs=(-1.5, -2.0)),
        ),
    }
    return Dump(**{**values, **fields})


# ---- the file


def test_a_dump_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "A.json"
    dump = made(scored={"x": ((-0.5, -0.25), (-1.5, -2.0))})

    dump.write(file)

    assert Dump.read(file) == dump
    assert list(file.parent.iterdir()) == [file]


def test_logprobs_that_are_no_numbers_come_back_too(tmp_path: Path) -> None:
    row = Row(kind="greedy", prompt=0, tokens=(4, 5), logprobs=(-math.inf, math.nan))

    made(rows=(row,)).write(tmp_path / "A.json")

    back = Dump.read(tmp_path / "A.json").rows[0].logprobs
    json.loads((tmp_path / "A.json").read_text(), parse_constant=pytest.fail)  # NaN is not JSON
    assert back[0] == -math.inf
    assert math.isnan(back[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "is not valid JSON"),
        ("[]", "is not a dump"),
        ('{"slots": 1}', "is not a dump"),
        (json.dumps({"format": DUMP_FORMAT + 1, "rows": []}), f"is a dump of format {DUMP_FORMAT + 1}"),
        (json.dumps({**made().model_dump(mode="json"), "rows": [{"kind": "greedy"}]}), "rows.0.prompt: Field required"),
    ],
)
def test_what_is_no_dump_is_refused_with_its_name(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "A.json"
    if text is not None:
        file.write_text(text)

    with pytest.raises(UsageError, match=r"A\.json") as caught:
        Dump.read(file)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": []}, "row 0 is of prompt 0, and there are 0"),
        ({"rows": [{**made().rows[0].model_dump(), "logprobs": [-1]}]}, "row 0 has 2 tokens and 1 logprobs"),
        ({"scored": {made().digest: [[-1, -1]]}}, "there are 2 rows, and 1 were scored"),
    ],
)
def test_a_dump_whose_parts_do_not_fit_together_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "A.json").write_text(json.dumps({**made().model_dump(mode="json"), **change}))

    with pytest.raises(UsageError, match=message):
        Dump.read(tmp_path / "A.json")


def test_a_dump_that_cannot_be_written_leaves_the_old_one_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "A.json").mkdir()

    with pytest.raises(UsageError, match="cannot be written"):
        made().write(tmp_path / "A.json")

    assert [file.name for file in tmp_path.iterdir()] == ["A.json"]


def test_the_digest_names_prompts_and_tokens_and_nothing_else() -> None:
    dump = made()

    other = made(rows=tuple(row.model_copy(update={"logprobs": (-9.0, -9.0)}) for row in dump.rows))

    assert dump.digest == other.digest == digest(dump.sequences)
    assert made(rows=dump.rows[:1]).digest != dump.digest
    assert made(prompts=((1, 2),)).digest != dump.digest


# ---- the configuration


def test_a_rollout_s_engine_loads_the_checkpoint_and_keys_that_were_not_typed_stay_so() -> None:
    config = GenerationConfig.parse({"model": "some/model", "engine": {"seed": 3}})

    found = prepared(config, new_tokens=5).model_dump(mode="json", exclude_unset=True)

    assert found == {
        "model": {"path": "some/model"},
        "engine": {"seed": 3, "load_format": "auto"},
        "sampling": {"max_new_tokens": 5},
    }


def test_a_load_format_that_was_typed_stays() -> None:
    config = GenerationConfig.parse({"model": "some/model", "engine": {"load_format": "dummy"}})

    assert prepared(config) == config


# ---- the engine's settings


class Mode(enum.Enum):
    """Like vLLM's modes."""

    NONE = 0
    FULL = (1, 2)


@dataclass
class Inner:
    """A configuration inside of another."""

    fuse: bool = True
    cache_dir: str = "/home/somebody"


@dataclass
class Compilation:
    """Like vLLM's configuration of the compiler."""

    mode: Mode = Mode.FULL
    sizes: tuple[int, ...] = (1, 2)
    pass_config: Inner = field(default_factory=Inner)
    model_path: str = "/home/somebody"
    _private: int = 1
    forward: Any = field(default_factory=object)


class Model:
    """Like vLLM's configuration of the model, as far as it is asked; ``head_dtype`` is no field there."""

    head_dtype = SimpleNamespace()

    @staticmethod
    def get_diff_sampling_param() -> dict[str, Any]:
        """What the checkpoint's generation_config.json says."""
        return {"temperature": 0.6, "top_k": 20}


def test_settings_are_those_that_the_version_has_as_json_can_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "variables", dict)
    config = SimpleNamespace(compilation_config=Compilation(), model_config=Model(), optimization_level=Mode.NONE)

    found = effective(config)

    assert found == {
        "compilation_config.mode": "FULL",
        "compilation_config.pass_config.fuse": True,
        "compilation_config.sizes": [1, 2],
        "optimization_level": "NONE",
        "quantization": None,
        "sampling_defaults.temperature": 0.6,
        "sampling_defaults.top_k": 20,
    }
    json.dumps(found, allow_nan=False)


def test_no_secret_and_no_place_of_this_machine_gets_into_a_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "VLLM_API_KEY",
        "VLLM_CACHE_ROOT",
        "VLLM_HOST_IP",
        "VLLM_RPC_BASE_PATH",
        "NCCL_SECRET",
        "NCCL_DEBUG_FILE_PATH",
    ):
        monkeypatch.setenv(name, "/somewhere/private")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    readers = {name: partial(os.environ.get, name) for name in os.environ if name.startswith("VLLM_")}
    readers |= {"VLLM_USE_FLASHINFER_SAMPLER": lambda: True, "CUDA_HOME": lambda: "/usr", "VLLM_BROKEN": lambda: int("x")}
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(envs=SimpleNamespace(environment_variables=readers)))

    found = variables()

    assert {name: found.get(name) for name in ("NCCL_ALGO", "VLLM_USE_FLASHINFER_SAMPLER", "CUDA_HOME", "VLLM_BROKEN")} == {
        "NCCL_ALGO": "Ring",
        "VLLM_USE_FLASHINFER_SAMPLER": True,
        "CUDA_HOME": None,
        "VLLM_BROKEN": None,
    }
    assert "/somewhere/private" not in map(str, found.values())


def test_every_ignored_setting_is_one_that_walking_would_find() -> None:
    sections = {name.partition(".")[0] for name in module._IGNORED}

    assert sections <= set(module._SECTIONS)
