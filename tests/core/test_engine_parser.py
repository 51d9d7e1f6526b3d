"""The process in which a vLLM reads a run: what it is shut off from, and what it says if that vLLM cannot be imported."""

from __future__ import annotations

import sys

import pytest

from quirks_core.source.engine_parser import Run, judge
from quirks_core.source.vllm_source import VllmSource


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Makes a vLLM whose import runs some code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(code):
        folder = tmp_path / "tree" / "vllm"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(f"__version__ = '0.99'\n{code}\n")
        return VllmSource(folder)

    return make


def failure_of(source):
    """Why the import ends."""
    return judge(source, [Run(words=("M",))]).failure


def test_code_of_a_release_gets_neither_secrets_nor_plugins(tree, monkeypatch):
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "VLLM_API_KEY", "MODEL_QUIRKS", "PYTHONPATH"):
        monkeypatch.setenv(name, "hush")

    found = failure_of(tree("import os; raise ValueError(f'{dict(os.environ)}')"))

    assert "hush" not in found
    assert "'VLLM_PLUGINS': ''" in found


def test_a_release_whose_torch_is_missing_says_so(tree, monkeypatch):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if "site-packages" not in place])

    assert failure_of(tree("import torch; torch.library.custom_op")) == "torch is not installed"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import socket; socket.create_connection(('127.0.0.1', 1))", "is not allowed here"),
        ("import subprocess; subprocess.run(['true'])", "is not allowed here"),
        ("import os; os.system('true')", "is not allowed here"),
        ("import os; os.fork()", "is not allowed here"),
        ("import os; os._exit(7)", "its import ended with 7"),
        ("import time; time.sleep(600)", "its import took longer than 3 s"),
        ("import acme.part; raise ValueError(acme.part.Name)", "Name'>; not installed: acme"),  # a stub
    ],
)
def test_what_an_import_may_not_do_or_cannot_have_is_said(tree, monkeypatch, code, words):
    monkeypatch.setattr("quirks_core.source.engine_parser.LIMIT_S", 3.0 if "sleep" in code else 600.0)

    assert words in failure_of(tree(code))
