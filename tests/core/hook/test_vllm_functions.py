"""Whether the hook fits a vLLM is read from its version and source."""

from __future__ import annotations

import pytest

from quirks_core.hook import vllm_functions
from quirks_core.source.vllm_source import VllmSource


@pytest.fixture
def problem(tmp_path):
    """Returns what is wrong with a vLLM of nothing but those functions, with one of them changed."""

    def of(version="0.32.0", before="", after=""):
        bodies = {}
        for target, names in vllm_functions.SEAMS.items():
            module, _, path = target.partition(":")
            owner, _, name = path.partition(".")
            method = f"    def {name}({', '.join(names)}): ...\n".replace(before, after)
            bodies.setdefault(module, {}).setdefault(owner, []).append(method)
        for module, owners in bodies.items():
            file = tmp_path / f"{module.replace('.', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"class {owner}:\n{''.join(methods)}" for owner, methods in owners.items()))
        return vllm_functions.problem(version, VllmSource(tmp_path / "vllm"))

    return of


def test_the_hook_is_for_the_versions_that_were_read(problem):
    assert [problem(version) for version in ("0.16.0", "0.26.0", "0.32.1+cpu", "0.33.0rc1", "0.33.4.post1")] == [None] * 5
    for version in ("0.15.1", "0.34.0", "1.0", "nightly"):
        assert problem(version) == f"vLLM {version} is none of 0.16 to 0.33, for which the hook was written"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("init_worker", "make_worker", " has no vllm.v1.worker.worker_base:WorkerWrapperBase.init_worker"),
        ("usage_context, ", "", " takes (self, headless) instead of (self, usage_context, headless)"),
    ],
)
def test_a_function_that_is_gone_or_takes_other_names_is_named(problem, before, after, message):
    assert problem("0.32.0", before, after).endswith(message)
