"""The extra that brings what is missing."""

from __future__ import annotations

import pytest
from installed import needs_vllm

from quirks_core.facts.installation import needs


@needs_vllm
@pytest.mark.parametrize(
    ("module", "engine", "remedy"),
    [
        ("matplotlib.figure", False, "pip install '.[parity]' in a clone of model-quirks"),
        ("ray", False, "pip install '.[ray]' in a clone of model-quirks"),
        ("acme", False, "pip install acme"),
        ("acme", True, "pip install acme"),
    ],
)
def test_the_remedy_for_a_missing_module_is_its_extra(monkeypatch, module, engine, remedy):
    monkeypatch.setattr("quirks_core.facts.installation._is_there", lambda _: False)

    assert needs(ModuleNotFoundError(name=module), engine=engine) == f"{module.partition('.')[0]} is not installed: {remedy}"


@needs_vllm
@pytest.mark.parametrize("module", ["vllm.no_such_module", "json", "worker.no_such_module", None])
def test_a_module_that_an_installed_package_lacks_has_no_remedy(module):
    assert needs(ModuleNotFoundError(name=module), engine=True) is None
