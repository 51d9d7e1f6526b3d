"""What a dump's file promises, and which of an engine's settings it holds."""

from __future__ import annotations

import enum
import json
import math
import os
import sys
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from quirks_core.base.errors import UsageError
from worker.lab.compare import effective as module
from worker.lab.compare.dump import DUMP_FORMAT, Dump, digest
from worker.lab.compare.effective import effective, variables

# ---- the file


def test_a_dump_comes_back_from_its_file_as_it_was(dumped, row, tmp_path):
    file = tmp_path / "deep" / "A.json"
    dump = dumped((row("greedy", 0, None, (4, 5), (-math.inf, math.nan)), row("sampled", 1, 7, (4, 6))))

    dump.write(file)

    json.loads(file.read_text(), parse_constant=pytest.fail)  # NaN is not JSON
    assert str(Dump.read(file)) == str(dump)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSONDecodeError"),
        ('{"slots": 1}', "date: Field required"),
        (json.dumps({"format": DUMP_FORMAT + 1, "rows": []}), f"is a dump of format {DUMP_FORMAT + 1}"),
    ],
)
def test_what_is_no_dump_is_refused_with_its_name(tmp_path, text, message):
    file = tmp_path / "A.json"
    file.write_text(text)

    with pytest.raises(UsageError, match=rf"A\.json .*{message}"):
        Dump.read(file)


def test_the_digest_names_only_the_sequences(dumped):
    dump = dumped()
    other = dumped(tuple(row.model_copy(update={"logprobs": (-9.0,) * len(row.tokens)}) for row in dump.rows))

    assert dump.digest == other.digest == digest(dump.sequences)
    assert dump.digest not in (dumped(dump.rows[:1]).digest, dumped(prompts=((1, 2), (7, 8))).digest)


# ---- the engine's settings


class Mode(enum.Enum):
    """Like vLLM's modes."""

    NONE = 0
    FULL = (1, 2)


@dataclass
class Compilation:
    """Like vLLM's configuration of the compiler."""

    mode: Mode = Mode.FULL
    sizes: tuple[int, ...] = (1, 2)
    cache_dir: str = "/home/somebody"
    _private: int = 1
    forward: Any = field(default_factory=object)


def test_settings_are_those_of_the_version_as_json_holds_them(monkeypatch):
    monkeypatch.setattr(module, "variables", dict)
    model = SimpleNamespace(head_dtype=SimpleNamespace(), get_diff_sampling_param=lambda: {"temperature": 0.6, "top_k": 20})
    config = SimpleNamespace(compilation_config=Compilation(), model_config=model, optimization_level=Mode.NONE)

    found = effective(config)

    assert found == {
        "compilation_config.mode": "FULL",
        "compilation_config.sizes": [1, 2],
        "optimization_level": "NONE",
        "quantization": None,
        "sampling_defaults.temperature": 0.6,
        "sampling_defaults.top_k": 20,
    }
    json.dumps(found, allow_nan=False)


def test_nothing_private_gets_into_a_dump(monkeypatch):
    places = ("VLLM_API_KEY", "VLLM_CACHE_ROOT", "VLLM_HOST_IP", "NCCL_SECRET", "NCCL_DEBUG_FILE_PATH")
    for name in places:
        monkeypatch.setenv(name, "/somewhere/private")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    readers = {name: partial(os.environ.get, name) for name in os.environ if name.startswith("VLLM_")}
    readers |= {"VLLM_USE_FLASHINFER_SAMPLER": lambda: True, "CUDA_HOME": lambda: "/usr"}
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(envs=SimpleNamespace(environment_variables=readers)))

    found = variables()

    assert (found["NCCL_ALGO"], found["VLLM_USE_FLASHINFER_SAMPLER"]) == ("Ring", True)
    assert not {"CUDA_HOME", *places} & found.keys()
    assert "/somewhere/private" not in map(str, found.values())
