"""Whether the hook fits the installed vLLM is read from its version and source."""

from __future__ import annotations

import pytest

from quirks_core.facts.packages import PACKAGES
from quirks_core.hook import vllm_functions

SOURCES = {
    "vllm/__init__.py": "",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
        class EngineArgs:
            def create_engine_config(self, usage_context=None, headless=False): ...
            def from_cli_args(cls, args): ...
    """,
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": """
        class FlexibleArgumentParser:
            def parse_args(self, args=None, namespace=None): ...
    """,
    "vllm/v1/__init__.py": "",
    "vllm/v1/executor/__init__.py": "",
    "vllm/v1/executor/abstract.py": """
        class Executor:
            def __init__(self, vllm_config): ...
            def initialize_from_config(self, kv_cache_configs): ...
            def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False): ...
    """,
    "vllm/v1/worker/__init__.py": "",
    "vllm/v1/worker/worker_base.py": """
        class WorkerWrapperBase:
            def init_worker(self, all_kwargs): ...
            def init_device(self): ...
    """,
}


@pytest.fixture
def engine(fake_distribution, write_modules):
    """Installs a vLLM of nothing but those functions, with some of them changed."""

    def install(version="0.32.0", **changed):
        for name in PACKAGES["vllm"]:
            fake_distribution(name, version)
        files = {**SOURCES}
        for name, (before, after) in changed.items():
            file = next(path for path in files if path.endswith(f"/{name}.py"))
            files[file] = files[file].replace(before, after)
        write_modules(files)

    return install


@pytest.mark.parametrize("version", ["0.16.0", "0.26.0", "0.32.1+cpu", "0.33.0rc1", "0.33.4.post1"])
def test_a_version_that_was_read_fits(engine, version):
    engine(version)

    assert vllm_functions.problem() is None


@pytest.mark.parametrize("version", ["0.15.1", "0.34.0", "1.0", "nightly"])
def test_another_version_does_not(engine, version):
    engine(version)

    assert vllm_functions.problem() == f"vLLM {version} is none of 0.16 to 0.33, for which the hook was written"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"worker_base": ("init_worker", "make_worker")}, " has no vllm.v1.worker.worker_base:WorkerWrapperBase.init_worker"),
        ({"arg_utils": ("usage_context=None, ", "")}, " takes (self, headless) instead of (self, usage_context, headless)"),
    ],
)
def test_a_function_that_is_gone_or_takes_something_else_is_named(engine, changed, problem):
    engine(**changed)

    assert vllm_functions.problem().endswith(problem)
