"""Active, dormant, expired: by versions and by the installed source, never by dates."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quirks_core import Affected, Loaded, Match, ModelFacts, PairedRun, Quirk, Registry, RunContext, StaticProbe, package
from quirks_core import lifecycle as lifecycle_module
from quirks_core.lifecycle import SUPPORTED_FLOOR, Stage, lifecycle
from quirks_core.packages import installed_platform, installed_versions
from quirks_core.plan import State

MakeQuirk = Callable[..., Quirk]
MakeLoaded = Callable[..., Loaded]


@pytest.fixture
def stage(make_quirk: MakeQuirk, loaded: MakeLoaded) -> Callable[..., Stage]:
    """Tells the stage of a quirk with the given ranges where the given packages are installed."""

    def tell(*affected: Affected, **versions: str) -> Stage:
        return lifecycle(loaded(make_quirk(affected=affected)), versions).stage

    return tell


@pytest.mark.parametrize(
    ("affected", "installed", "expected"),
    [
        ((), {"vllm": "0.32.0"}, Stage.ACTIVE),
        ((Affected("vllm", introduced="0.30"),), {"vllm": "0.32.0"}, Stage.ACTIVE),
        ((Affected("vllm", introduced="0.33"),), {"vllm": "0.32.0"}, Stage.DORMANT),
        ((Affected("vllm", fixed="0.9.2"),), {"vllm": "0.9.1"}, Stage.ACTIVE),
        ((Affected("vllm", fixed="0.9.2"),), {"vllm": "0.9.2rc1"}, Stage.ACTIVE),
        ((Affected("vllm", fixed="0.9.2"),), {"vllm": "0.9.2"}, Stage.DORMANT),
        ((Affected("vllm", fixed="0.9.2"),), {"vllm": "0.9.2+cpu"}, Stage.DORMANT),
        ((Affected("vllm", fixed="0.9.2"),), {}, Stage.ACTIVE),
        ((Affected("vllm", fixed="0.9.2"),), {"vllm": "0.1.dev1"}, Stage.ACTIVE),
        ((Affected("vllm", fixed="0.9.0"),), {"vllm": "0.32.0"}, Stage.EXPIRED),
        ((Affected("vllm", fixed="0.8"),), {"vllm": "0.7"}, Stage.EXPIRED),
        ((Affected("vllm", fixed="0.8"),), {}, Stage.EXPIRED),
        ((Affected("vllm", fixed="0.9.0.post1"),), {"vllm": "0.32.0"}, Stage.DORMANT),
        ((Affected("vllm", fixed="0.9.0rc1"),), {"vllm": "0.32.0"}, Stage.EXPIRED),
        ((Affected("vllm", fixed="0.8"), Affected("vllm", introduced="0.30")), {"vllm": "0.32.0"}, Stage.ACTIVE),
        ((Affected("vllm", fixed="0.8"), Affected("vllm", introduced="0.30")), {"vllm": "0.20"}, Stage.DORMANT),
        ((Affected("vllm", fixed="0.7"), Affected("vllm", introduced="0.7.5", fixed="0.8")), {}, Stage.EXPIRED),
        ((Affected("vllm", introduced="0.30"), Affected("torch", fixed="2.0")), {"vllm": "0.32", "torch": "2"}, Stage.DORMANT),
        ((Affected("vllm", introduced="0.30"), Affected("torch", fixed="2.9")), {"vllm": "0.32", "torch": "2"}, Stage.ACTIVE),
        ((Affected("vllm", fixed="0.8"), Affected("torch", introduced="2.0")), {"torch": "2.8"}, Stage.EXPIRED),
        ((Affected("torch", fixed="0.1"),), {"torch": "2.8"}, Stage.DORMANT),
    ],
)  # fmt: skip
def test_the_stage_follows_the_versions(
    stage: Callable[..., Stage], affected: tuple[Affected, ...], installed: dict[str, str], expected: Stage
) -> None:
    assert stage(*affected, **installed) is expected


def test_raising_the_floor_expires_what_is_fixed_below_it(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = Affected("vllm", fixed="0.9.2")
    assert stage(fixed, vllm="0.32.0") is Stage.DORMANT

    monkeypatch.setattr(lifecycle_module, "SUPPORTED_FLOOR", {"vllm": "0.10"})

    assert stage(fixed, vllm="0.32.0") is Stage.EXPIRED


def test_an_expired_quirk_says_delete_me_and_why(make_quirk: MakeQuirk, loaded: MakeLoaded) -> None:
    found = lifecycle(loaded(make_quirk(affected=Affected("vllm", fixed="0.8"))), {})

    assert (
        found.evidence[-1]
        == f"vllm is fixed in 0.8, and nothing below {SUPPORTED_FLOOR['vllm']} is supported: delete this quirk"
    )


def test_the_evidence_names_ranges_versions_and_runs(make_quirk: MakeQuirk, loaded: MakeLoaded) -> None:
    quirk = make_quirk(affected=Affected("vllm", fixed="0.9.2"), evidence=PairedRun("mine:run", "live on vLLM 0.9.1"))

    found = lifecycle(loaded(quirk), {"vllm": "0.32.0"})

    assert found.evidence == ("affected: vllm < 0.9.2", "installed: vllm 0.32.0", "paired run, live on vLLM 0.9.1")


@pytest.mark.parametrize(("found_means_affected", "expected"), [(True, Stage.ACTIVE), (False, Stage.DORMANT)])
def test_a_probe_settles_a_source_build_both_ways(
    make_quirk: MakeQuirk,
    loaded: MakeLoaded,
    fake_distribution: Callable[..., None],
    found_means_affected: bool,
    expected: Stage,
) -> None:
    fake_distribution("fake-engine", "0.1.dev1", modules={"fake_engine/__init__.py": "MARK = 1\n"})
    probe = StaticProbe("fake_engine", "MARK", found_means_affected=found_means_affected)
    quirk = make_quirk(affected=Affected("fake-engine", fixed="0.9"), evidence=probe)

    found = lifecycle(loaded(quirk))

    assert found.stage is expected
    assert any(text.endswith(str(probe)) for text in found.evidence)


@pytest.mark.parametrize(("version", "expected"), [("0.0.27", Stage.ACTIVE), ("0.0.28", Stage.DORMANT)])
def test_packages_outside_the_known_list_count_as_well(
    make_quirk: MakeQuirk, loaded: MakeLoaded, fake_distribution: Callable[..., None], version: str, expected: Stage
) -> None:
    fake_distribution("xformers", version)

    assert lifecycle(loaded(make_quirk(affected=Affected("xformers", fixed="0.0.28")))).stage is expected


def test_audit_and_plan_agree_about_what_is_dormant_here() -> None:
    registry = Registry.load()
    context = RunContext(
        model=ModelFacts(name="m", path="m", config={"model_type": "gemma3"}),
        packages=installed_versions(),
        platform=installed_platform(),
    )

    planned = {verdict.id for verdict in registry.resolve(context).verdicts if verdict.state is State.DORMANT}

    audited = {item.quirk.id for item in registry.loaded if lifecycle(item).stage is Stage.DORMANT}
    assert planned <= audited


def test_no_quirk_that_ships_with_us_is_expired() -> None:
    expired = [item.quirk.id for item in Registry.load().loaded if lifecycle(item).stage is Stage.EXPIRED]

    assert expired == [], "delete them: every supported version has the fix"


def test_a_quirk_whose_match_cannot_be_read_still_has_a_stage(make_quirk: MakeQuirk, loaded: MakeLoaded) -> None:
    class Own(Match):
        """A third party's match with a bug."""

        def trace(self, facts: object) -> object:
            raise RuntimeError(f"no {facts}")

    quirk = make_quirk(match=Own() & package("vllm", fixed="0.9"), affected=Affected("vllm", fixed="0.9.2"))

    assert lifecycle(loaded(quirk), {"vllm": "0.32.0"}).stage is Stage.DORMANT
