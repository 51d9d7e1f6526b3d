"""Python runs this first in every process below ``quirks run``: its folder is on PYTHONPATH. The next sitecustomize follows."""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _watch() -> None:
    if os.environ.get("MODEL_QUIRKS", "").lower() in ("", "off"):
        return
    try:
        from quirks_core.hook import before_vllm

        before_vllm.watch()
    except Exception as error:
        problem = f"model-quirks: this Python ({sys.executable}) cannot load model-quirks: {error!r}; install it there"
        if os.environ.get("MODEL_QUIRKS_REQUIRE_RECEIPT") == "1":
            sys.meta_path.insert(0, _NoEngine(problem))


class _NoEngine:
    """Lets nothing import vLLM where its engines could have no receipt; other programs run as ever."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def find_spec(self, name: str, *_: object) -> None:
        if name == "vllm":
            raise ImportError(self.problem)


def _run_next() -> None:
    others = [folder for folder in sys.path if folder and Path(folder).resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_watch()
_run_next()
