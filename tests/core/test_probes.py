"""Probes: evidence from the installed source, in three values, and what a version leaves open is settled both ways."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from quirks_core import (
    ABSENT,
    Affected,
    Answer,
    DeclarationError,
    FingerprintProbe,
    Quirk,
    Registry,
    RunContext,
    StaticProbe,
    SymbolProbe,
)
from quirks_core.fingerprints import fingerprint
from quirks_core.plan import State, Verdict
from quirks_core.probes import Probe

MakeContext = Callable[..., RunContext]
MakeQuirk = Callable[..., Quirk]

SOURCE = """
from json import loads as read
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    LAZY: str
MARK = 1
class Engine:
    size: int
    name = depth = "x"
    def step(self):
        self.steps = 1
"""
STEP = "fake_engine.module:Engine.step"
SOURCE_BUILD = "0.1.dev1+g1234567"


@pytest.fixture(autouse=True)
def fake_engine(write_modules: Callable[[dict[str, str]], None]) -> None:
    """A package that must not be imported to be read."""
    write_modules({"fake_engine/__init__.py": "raise RuntimeError\n", "fake_engine/module.py": SOURCE})


def probes_that_answer(answer: Answer) -> list[Probe]:
    """A probe of every kind with that answer."""
    bug = answer is Answer.YES
    known = fingerprint(STEP)
    return [
        StaticProbe("fake_engine.module", "MARK", found_means_affected=bug),
        StaticProbe("fake_engine.module", "NO_SUCH_MARK", found_means_affected=not bug),
        SymbolProbe(STEP, present_means_affected=bug),
        SymbolProbe("fake_engine.module:Engine.gone", present_means_affected=not bug),
        SymbolProbe("fake_engine.module", present_means_affected=bug),
        SymbolProbe("fake_engine.gone", present_means_affected=not bug),
        SymbolProbe("fake_engine.gone:Engine", present_means_affected=not bug),
        FingerprintProbe(STEP, affected=known) if bug else FingerprintProbe(STEP, fixed=known),
        FingerprintProbe("fake_engine.module:Engine.gone", **{"affected" if bug else "fixed": (ABSENT,)}),
    ]


KINDS = range(9)


@pytest.mark.parametrize("answer", [Answer.YES, Answer.NO])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_probe_answers_yes_and_no_and_imports_nothing(kind: int, answer: Answer) -> None:
    probe = probes_that_answer(answer)[kind]

    assert probe.answer() is answer
    assert "fake_engine" not in sys.modules


@pytest.mark.parametrize(
    "name", ["MARK", "LAZY", "read", "TYPE_CHECKING", "Engine", "Engine.size", "Engine.depth", "Engine.step"]
)
def test_a_symbol_is_there_whatever_makes_it(name: str) -> None:
    assert SymbolProbe(f"fake_engine.module:{name}", present_means_affected=True).answer() is Answer.YES


@pytest.mark.parametrize("name", ["loads", "json", "str", "Engine.read", "Engine.steps", "Engine.self", "MARK.real"])
def test_a_symbol_of_another_place_is_not_there(name: str) -> None:
    assert SymbolProbe(f"fake_engine.module:{name}", present_means_affected=True).answer() is Answer.NO


@pytest.mark.parametrize(
    "probe",
    [
        StaticProbe("no_such_package.module", "x", found_means_affected=True),
        StaticProbe("fake_engine.gone", "x", found_means_affected=True),
        SymbolProbe("no_such_package.module:Engine", present_means_affected=True),
        SymbolProbe("no_such_package", present_means_affected=False),
        FingerprintProbe("no_such_package.module:Engine", affected=("0" * 64,)),
        FingerprintProbe(STEP, affected=("0" * 64,), fixed=("1" * 64,)),
    ],
    ids=str,
)
def test_what_the_installed_source_does_not_tell_is_unknown(probe: Probe) -> None:
    assert probe.answer() is Answer.UNKNOWN


def test_a_fingerprint_with_line_digests_will_do() -> None:
    assert FingerprintProbe(STEP, fixed=(fingerprint(STEP, lines=True),)).answer() is Answer.NO


def test_a_fingerprint_probe_needs_a_fingerprint() -> None:
    with pytest.raises(DeclarationError, match="name fingerprints that are affected or fixed"):
        FingerprintProbe(STEP)


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_says_in_words_what_it_looks_at_and_of_which_package(kind: int) -> None:
    probe = probes_that_answer(Answer.YES)[kind]

    assert "fake_engine" in str(probe)
    assert probe.package == "fake-engine"


@pytest.fixture
def verdict(make_context: MakeContext, make_quirk: MakeQuirk, make_plan: Callable[..., Any]) -> Callable[..., Verdict]:
    """Judges one quirk with the given ranges and evidence on the given versions."""

    def judge(affected: Any, evidence: Any = (), *, assumed: frozenset[str] = frozenset(), **packages: str) -> Verdict:
        context = make_context(packages={name.replace("_", "-"): text for name, text in packages.items()}, assumed=assumed)
        (found,) = make_plan(make_quirk(affected=affected, evidence=evidence), context=context).verdicts
        return found

    return judge


RANGE = Affected("fake-engine", introduced="0.9", fixed="0.11.1")


@pytest.mark.parametrize(("answer", "state"), [(Answer.YES, State.ACTIVE), (Answer.NO, State.DORMANT)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_source_build_is_settled_both_ways_by_every_kind_of_probe(
    verdict: Callable[..., Verdict], kind: int, answer: Answer, state: State
) -> None:
    probe = probes_that_answer(answer)[kind]

    found = verdict(RANGE, probe, fake_engine=SOURCE_BUILD)

    assert (found.state, found.verdict) == (state, answer)
    assert any(f"(a source build: settled by {probe})" in leaf.wanted for leaf in found.trace)


@pytest.mark.parametrize("name", ["fake-engine", "fake_engine", "Fake.Engine"])
def test_a_package_may_be_written_as_pip_takes_it(verdict: Callable[..., Verdict], name: str) -> None:
    probe = StaticProbe("fake_engine.module", "MARK", found_means_affected=True)

    assert verdict(Affected(name, fixed="0.9"), probe, fake_engine=SOURCE_BUILD).state is State.ACTIVE


@pytest.mark.parametrize("found_means_affected", [True, False])
def test_a_probe_of_another_package_settles_nothing(verdict: Callable[..., Verdict], found_means_affected: bool) -> None:
    probe = StaticProbe("quirks_core.probes", "Probe", found_means_affected=found_means_affected)

    assert verdict(RANGE, probe, fake_engine=SOURCE_BUILD).state is State.UNKNOWN


def test_a_probe_that_cannot_tell_leaves_it_to_the_next(verdict: Callable[..., Verdict]) -> None:
    silent = FingerprintProbe(STEP, affected=("0" * 64,))
    telling = StaticProbe("fake_engine.module", "MARK", found_means_affected=True)

    assert verdict(RANGE, silent, fake_engine=SOURCE_BUILD).state is State.UNKNOWN
    assert verdict(RANGE, (silent, telling), fake_engine=SOURCE_BUILD).state is State.ACTIVE


def test_an_assumed_source_build_is_not_settled_by_what_is_installed(verdict: Callable[..., Verdict]) -> None:
    probe = StaticProbe("fake_engine.module", "MARK", found_means_affected=True)

    found = verdict(RANGE, probe, assumed=frozenset({"fake-engine"}), fake_engine=SOURCE_BUILD)

    assert found.state is State.UNKNOWN


@pytest.mark.parametrize(("version", "state"), [("0.10", State.ACTIVE), ("0.12", State.DORMANT)])
def test_a_probe_does_not_overrule_a_version_that_can_be_placed(
    verdict: Callable[..., Verdict], version: str, state: State
) -> None:
    contrary = StaticProbe("fake_engine.module", "MARK", found_means_affected=state is State.DORMANT)

    assert verdict(RANGE, contrary, fake_engine=version).state is state


DISJOINT = (
    Affected("vllm", fixed="0.8.5"),
    Affected("vllm", introduced="0.10", fixed="0.11.1"),
    Affected("vllm", introduced="0.30"),
)


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("0.8.4", State.ACTIVE),
        ("0.8.5.dev7", State.ACTIVE),
        ("0.8.5rc1", State.ACTIVE),
        ("0.8.5", State.DORMANT),
        ("0.8.5.post1", State.DORMANT),
        ("0.8.5+cu129", State.DORMANT),
        ("0.10rc1", State.DORMANT),
        ("0.10", State.ACTIVE),
        ("0.10.0+cpu", State.ACTIVE),
        ("0.11.0.post3", State.ACTIVE),
        ("0.11.1rc2+g1234567", State.ACTIVE),
        ("0.11.1", State.DORMANT),
        ("0.29.99", State.DORMANT),
        ("0.30.0.dev5", State.DORMANT),
        ("0.30.0", State.ACTIVE),
        ("1!0.1", State.ACTIVE),
        (SOURCE_BUILD, State.UNKNOWN),
        ("nightly", State.UNKNOWN),
    ],
)
def test_several_disjoint_ranges_of_one_package(verdict: Callable[..., Verdict], version: str, state: State) -> None:
    assert verdict(DISJOINT, vllm=version).state is state


@pytest.mark.parametrize(
    ("version", "state"), [("0.0.27.post2", State.ACTIVE), ("0.0.28.dev1", State.ACTIVE), ("0.0.28", State.DORMANT)]
)
def test_a_package_that_we_have_never_heard_of_counts_as_soon_as_it_is_installed(
    fake_distribution: Callable[..., None],
    load_fakes: Callable[..., Registry],
    make_context: MakeContext,
    version: str,
    state: State,
) -> None:
    fake_distribution("xformers", version)
    registry = load_fakes(fake_one="QUIRK = make('fake-one', affected=Affected('xformers', fixed='0.0.28'))")

    plan = registry.resolve(make_context())

    assert plan.verdicts[0].state is state
    assert plan.context.packages["xformers"] == version


def test_a_package_that_is_not_installed_leaves_the_quirk_unknown(
    load_fakes: Callable[..., Registry], make_context: MakeContext
) -> None:
    registry = load_fakes(fake_one="QUIRK = make('fake-one', affected=Affected('no-such-package', fixed='1.0'))")

    plan = registry.resolve(make_context())

    assert plan.verdicts[0].state is State.UNKNOWN
    assert "packages.no-such-package" in plan.verdicts[0].because


def test_a_match_on_a_packages_version_reads_any_package_too(
    fake_distribution: Callable[..., None], load_fakes: Callable[..., Registry], make_context: MakeContext
) -> None:
    fake_distribution("xformers", "0.0.27")
    registry = load_fakes(fake_one="QUIRK = make('fake-one', match=package('xformers', fixed='0.0.28'))")

    assert registry.resolve(make_context()).verdicts[0].state is State.ACTIVE
