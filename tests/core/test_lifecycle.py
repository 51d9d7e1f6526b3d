"""Whether installed versions are affected, and whether any supported one is: by versions and source, never by dates."""

from __future__ import annotations

import pytest
from installed import needs_vllm

from quirks_core import Affected, StaticProbe
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import Installation
from quirks_core.facts.packages import installed_platform, installed_versions
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plan.evaluate import affected
from quirks_core.plugins import validate
from quirks_core.plugins.validate import expired


def vllm(introduced=None, fixed=None):
    """A range of versions of vLLM."""
    return Affected("vllm", introduced, fixed)


def stage(quirk, installed=None):
    """What the versions make of a quirk."""
    is_fixed = affected(Installation(installed), quirk).answer is Answer.NO
    return "expired" if expired(quirk) else "dormant" if is_fixed else "active"


@pytest.mark.parametrize(
    ("ranges", "installed", "expected"),
    [
        ([], {"vllm": "0.32.0"}, "active"),
        ([vllm("0.33")], {"vllm": "0.32.0"}, "dormant"),
        ([vllm(fixed="0.9.2")], {"vllm": "0.9.2+cpu"}, "dormant"),
        ([vllm(fixed="0.9.2")], {}, "active"),
        ([vllm(fixed="0.9.0")], {"vllm": "0.32.0"}, "expired"),
        ([vllm(fixed="0.8")], {}, "expired"),
        ([vllm(fixed="0.8"), vllm("0.30")], {"vllm": "0.32.0"}, "active"),
        ([vllm("0.30"), Affected("torch", fixed="2.0")], {"vllm": "0.32", "torch": "2"}, "dormant"),
        ([vllm("0.30"), Affected("torch", fixed="2.9")], {"vllm": "0.32", "torch": "2"}, "active"),
        ([vllm(fixed="0.8"), Affected("torch", "2.0")], {"torch": "2.8"}, "expired"),
    ],
)
def test_the_stage_follows_the_versions(make_quirk, ranges, installed, expected):
    assert stage(make_quirk(affected=ranges), installed) == expected


def test_raising_the_floor_expires_what_is_fixed_below_it(make_quirk, monkeypatch):
    quirk = make_quirk(affected=vllm(fixed="0.9.2"))
    assert stage(quirk, {"vllm": "0.32.0"}) == "dormant"

    monkeypatch.setattr(validate, "SUPPORTED_FLOOR", {"vllm": "0.10"})

    assert stage(quirk, {"vllm": "0.32.0"}) == "expired"


@pytest.mark.parametrize(("found_means_affected", "expected"), [(True, "active"), (False, "dormant")])
def test_a_probe_settles_a_source_build_both_ways(make_quirk, fake_distribution, found_means_affected, expected):
    fake_distribution("fake-engine", "0.1.dev1", modules={"fake_engine/__init__.py": "MARK = 1\n"})
    probe = StaticProbe("fake_engine", "MARK", found_means_affected=found_means_affected)

    assert stage(make_quirk(affected=Affected("fake-engine", fixed="0.9"), evidence=probe)) == expected


@needs_vllm
def test_an_installation_knows_its_packages_but_nothing_of_a_run():
    here, given = Installation(), Installation({"vllm": "0.9.1"})

    assert (here.fact("platform"), here.fact("packages.vllm")) == (installed_platform(), installed_versions()["vllm"])
    assert (given.fact("packages.vllm"), given.fact("packages.torch"), given.fact("platform")) == ("0.9.1", UNKNOWN, UNKNOWN)
    assert (here.fact("model.name"), here.source_known("vllm"), given.source_known("vllm")) == (UNKNOWN, True, False)
