"""What is known of an installation alone, and which quirks have outlived all that is supported: by versions, never by dates."""

from __future__ import annotations

import pytest
from installed import needs_vllm

from quirks_core import Affected
from quirks_core.facts.context import Installation
from quirks_core.facts.packages import installed_platform, installed_versions
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plugins import validate
from quirks_core.plugins.validate import expired


def vllm(introduced=None, fixed=None):
    """A range of versions of vLLM."""
    return Affected("vllm", introduced, fixed)


@pytest.mark.parametrize(
    ("ranges", "answer"),
    [
        ([], False),
        ([vllm(fixed="0.9.2")], False),
        ([vllm(fixed="0.9.0")], True),
        ([vllm(fixed="0.8")], True),
        ([vllm(fixed="0.8"), vllm("0.30")], False),
        ([vllm(fixed="0.8"), Affected("torch", "2.0")], True),
    ],
)
def test_a_quirk_expires_once_no_supported_version_is_affected(make_quirk, monkeypatch, ranges, answer):
    monkeypatch.setattr(validate, "SUPPORTED_FLOOR", {"vllm": "0.9"})

    assert bool(expired(make_quirk(affected=ranges))) is answer


@needs_vllm
def test_an_installation_knows_its_packages_but_nothing_of_a_run():
    here, given = Installation(), Installation({"vllm": "0.9.1"})

    assert (here.fact("platform"), here.fact("packages.vllm")) == (installed_platform(), installed_versions()["vllm"])
    assert (given.fact("packages.vllm"), given.fact("packages.torch"), given.fact("platform")) == ("0.9.1", UNKNOWN, UNKNOWN)
    assert (here.fact("model.name"), here.source_known("vllm"), given.source_known("vllm")) == (UNKNOWN, True, False)
