"""Active, dormant, expired: by versions and by the installed source, never by dates."""

from __future__ import annotations

import pytest
from installed import needs_vllm

from quirks_core import Affected, StaticProbe
from quirks_core.facts.context import Installation
from quirks_core.facts.packages import installed_platform, installed_versions
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plugins import lifecycle as lifecycle_module
from quirks_core.plugins.lifecycle import Stage, lifecycle


def vllm(introduced=None, fixed=None):
    """A range of versions of vLLM."""
    return Affected("vllm", introduced, fixed)


@pytest.mark.parametrize(
    ("affected", "installed", "expected"),
    [
        ([], {"vllm": "0.32.0"}, Stage.ACTIVE),
        ([vllm("0.33")], {"vllm": "0.32.0"}, Stage.DORMANT),
        ([vllm(fixed="0.9.2")], {"vllm": "0.9.2+cpu"}, Stage.DORMANT),
        ([vllm(fixed="0.9.2")], {}, Stage.ACTIVE),
        ([vllm(fixed="0.9.0")], {"vllm": "0.32.0"}, Stage.EXPIRED),
        ([vllm(fixed="0.8")], {}, Stage.EXPIRED),
        ([vllm(fixed="0.8"), vllm("0.30")], {"vllm": "0.32.0"}, Stage.ACTIVE),
        ([vllm("0.30"), Affected("torch", fixed="2.0")], {"vllm": "0.32", "torch": "2"}, Stage.DORMANT),
        ([vllm("0.30"), Affected("torch", fixed="2.9")], {"vllm": "0.32", "torch": "2"}, Stage.ACTIVE),
        ([vllm(fixed="0.8"), Affected("torch", "2.0")], {"torch": "2.8"}, Stage.EXPIRED),
    ],
)
def test_the_stage_follows_the_versions(make_quirk, loaded, affected, installed, expected):
    assert lifecycle(loaded(make_quirk(affected=affected)), installed) is expected


def test_raising_the_floor_expires_what_is_fixed_below_it(make_quirk, loaded, monkeypatch):
    item = loaded(make_quirk(affected=vllm(fixed="0.9.2")))
    assert lifecycle(item, {"vllm": "0.32.0"}) is Stage.DORMANT

    monkeypatch.setattr(lifecycle_module, "SUPPORTED_FLOOR", {"vllm": "0.10"})

    assert lifecycle(item, {"vllm": "0.32.0"}) is Stage.EXPIRED


@pytest.mark.parametrize(("found_means_affected", "expected"), [(True, Stage.ACTIVE), (False, Stage.DORMANT)])
def test_a_probe_settles_a_source_build_both_ways(make_quirk, loaded, fake_distribution, found_means_affected, expected):
    fake_distribution("fake-engine", "0.1.dev1", modules={"fake_engine/__init__.py": "MARK = 1\n"})
    probe = StaticProbe("fake_engine", "MARK", found_means_affected=found_means_affected)

    found = lifecycle(loaded(make_quirk(affected=Affected("fake-engine", fixed="0.9"), evidence=probe)))

    assert found is expected


@needs_vllm
def test_an_installation_knows_its_packages_but_nothing_of_a_run():
    here, given = Installation(), Installation({"vllm": "0.9.1"})

    assert (here.fact("platform"), here.fact("packages.vllm")) == (installed_platform(), installed_versions()["vllm"])
    assert (given.fact("packages.vllm"), given.fact("packages.torch"), given.fact("platform")) == ("0.9.1", UNKNOWN, UNKNOWN)
    assert (here.fact("model.name"), here.source_known("vllm"), given.source_known("vllm")) == (UNKNOWN, True, False)
