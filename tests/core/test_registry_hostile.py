"""Hostile and clumsy plugins: one that hangs, floods, raises or lies is a named row, never a traceback of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from quirks_core import Plan, Registry, RunContext, Switches, UsageError
from quirks_core.guard import LIMIT_VARIABLE
from quirks_core.plan import State

LoadFakes = Callable[..., Registry]
MakeContext = Callable[..., RunContext]

GOOD = 'QUIRK = make("fake-good")'
HANG = "__import__('threading').Event().wait()"
OWN_MATCH = "class Own(Match):\n    def trace(self, facts): return Fact('a').is_true().trace(facts)\n"
DECLARES = '@hookimpl\ndef quirks_declare():\n    return [make("fake-bad")]\n\n'


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins get a moment only."""
    monkeypatch.setenv(LIMIT_VARIABLE, "0.3")


def good_and_bad(load_fakes: LoadFakes, source: str, module: str = "fake_bad") -> tuple[Registry, str]:
    """Loads one bad plugin beside a good one, and gives the bad one's error."""
    registry = load_fakes(**{module: source}, fake_good=GOOD)
    (row,) = registry.broken
    assert (row.name, row.distribution, row.version) == (module.replace("_", "-"), "fake-dist", "1.2")
    assert [item.quirk.id for item in registry.loaded] == ["fake-good"]
    return registry, row.error


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "source",
    [
        f"{HANG}\nQUIRK = make('fake-bad')",
        f"@hookimpl\ndef quirks_declare():\n    {HANG}\n    return []",
        f"@hookimpl\ndef quirks_declare():\n    yield make('fake-bad')\n    {HANG}",
    ],
    ids=["import", "quirks_declare", "generator"],
)
def test_a_plugin_that_hangs_is_given_up_and_the_limit_is_named(load_fakes: LoadFakes, source: str) -> None:
    # Of a module that hangs, Python keeps the import lock: no other test may use its name.
    _, error = good_and_bad(load_fakes, source, "fake_hangs_at_import" if "QUIRK =" in source else "fake_bad")

    assert error == f"did not return within 0.3 s ({LIMIT_VARIABLE} raises the limit)"


@pytest.mark.usefixtures("impatient")
def test_facts_that_hang_are_a_warning_that_names_the_hook_and_the_plugin(
    load_fakes: LoadFakes, make_context: MakeContext
) -> None:
    registry = load_fakes(fake_bad=f"{DECLARES}@hookimpl\ndef quirks_facts():\n    {HANG}", fake_good=GOOD)

    plan = registry.resolve(make_context(), Switches())

    assert plan.warnings == (
        f"quirks_facts of fake-dist:fake-bad failed: did not return within 0.3 s ({LIMIT_VARIABLE} raises the limit)",
    )
    assert [verdict.id for verdict in plan.active] == ["fake-bad", "fake-good"]


@pytest.mark.usefixtures("impatient")
def test_an_observer_that_hangs_is_reported(load_fakes: LoadFakes, make_context: MakeContext) -> None:
    registry = load_fakes(fake_bad=f"{DECLARES}@hookimpl\ndef quirks_observe(plan):\n    {HANG}", fake_good=GOOD)
    plan: Plan = registry.resolve(make_context(), Switches())

    (trouble,) = registry.observe(plan, "receipt")

    assert trouble.startswith("quirks_observe of fake-dist:fake-bad failed: did not return within 0.3 s")


def test_a_generator_without_end_is_cut_off(load_fakes: LoadFakes) -> None:
    endless = "@hookimpl\ndef quirks_declare():\n    one = make('fake-bad')\n    while True:\n        yield one"

    _, error = good_and_bad(load_fakes, endless)

    assert error == "quirks_declare returned more than 100000 quirks"


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", "1e999"])
def test_a_time_limit_that_is_no_number_of_seconds_is_a_usage_error(
    load_fakes: LoadFakes, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)

    with pytest.raises(UsageError, match=rf"{LIMIT_VARIABLE}='{text}' is not a positive number of seconds"):
        load_fakes(fake_good=GOOD)


@pytest.mark.parametrize(
    "error",
    [
        "asyncio.CancelledError('stop')",
        "GeneratorExit('stop')",
        "KeyboardInterrupt('stop')",
        "SystemExit('stop')",
        "type('Own', (BaseException,), {})('stop')",
    ],
)
@pytest.mark.parametrize("where", ["import", "hook"])
def test_what_is_no_exception_is_caught_like_one(load_fakes: LoadFakes, error: str, where: str) -> None:
    hook = "@hookimpl\ndef quirks_declare():\n    "
    source = f"import asyncio\n{hook if where == 'hook' else ''}raise {error}\nQUIRK = 1"

    _, text = good_and_bad(load_fakes, source if where == "import" else source.replace("\nQUIRK = 1", ""))

    assert "stop" in text


def test_an_error_that_has_no_words_is_named_by_its_type(load_fakes: LoadFakes) -> None:
    mute = "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\n\nraise Mute\nQUIRK = 1"

    assert "Mute" in good_and_bad(load_fakes, mute)[1]


@pytest.mark.parametrize(
    "answer",
    [
        "3",
        "'fake-bad'",
        "{'fake-bad': 1}",
        "[None]",
        "[type('Q', (), {'__repr__': lambda self: 1 / 0})()]",
        "[make]",
        "object()",
    ],
)
def test_a_declaring_hook_that_returns_the_wrong_type_is_broken(load_fakes: LoadFakes, answer: str) -> None:
    good_and_bad(load_fakes, f"@hookimpl\ndef quirks_declare():\n    return {answer}")


@pytest.mark.parametrize(
    "answer", ["3", "None", "[1]", "{1: object()}", "{'a': float('nan')}", "{'a': {1, 2}}", "loop", "'text'"]
)
def test_a_facts_hook_that_returns_the_wrong_type_is_a_warning(
    load_fakes: LoadFakes, make_context: MakeContext, answer: str
) -> None:
    loop = "loop = {}\nloop['a'] = loop\n\n"
    registry = load_fakes(fake_bad=f"{loop}{DECLARES}@hookimpl\ndef quirks_facts():\n    return {answer}", fake_good=GOOD)

    plan = registry.resolve(make_context(), Switches())

    (warning,) = plan.warnings
    assert warning.startswith("quirks_facts of fake-dist:fake-bad failed: ")
    assert plan.context.extra == {}


def test_what_an_observer_returns_is_of_no_concern(load_fakes: LoadFakes, make_context: MakeContext) -> None:
    registry = load_fakes(fake_bad=f"{DECLARES}@hookimpl\ndef quirks_observe():\n    return object()")

    assert registry.observe(registry.resolve(make_context(), Switches()), "receipt") == []


@pytest.mark.parametrize(
    "own",
    [
        "class Own(Match):\n    def trace(self, facts): raise OSError('no trace')",
        "class Own(Match):\n    def trace(self, facts): return 'yes'",
        f"{OWN_MATCH}    def facts(self): raise OSError('no facts')",
        f"{OWN_MATCH}    def model_types(self): raise OSError('no types')",
    ],
    ids=["trace raises", "trace is no trace", "facts raises", "model_types raises"],
)
def test_a_match_of_ones_own_kind_that_fails_leaves_the_others_alone(
    load_fakes: LoadFakes, make_context: MakeContext, own: str
) -> None:
    registry = load_fakes(fake_bad=f"{own}\n\nQUIRK = make('fake-bad', match=Own())", fake_good=GOOD)

    plan = registry.resolve(make_context(), Switches())

    states = {verdict.id: verdict.state for verdict in plan.verdicts}
    assert states == {"fake-bad": State.UNKNOWN, "fake-good": State.ACTIVE}
    assert any("fake-bad" in warning for warning in plan.warnings)
    plan.to_json()


@pytest.mark.parametrize("method", ["answer", "source"])
def test_a_probe_of_ones_own_kind_that_fails_settles_nothing(
    load_fakes: LoadFakes, make_context: MakeContext, method: str
) -> None:
    own = (
        "from quirks_core.probes import Probe\n"
        "class Own(Probe):\n    def source(self): return 'vllm'\n    def answer(self): return Answer.YES\n"
        f"def fail(self): raise OSError('no {method}')\nOwn.{method} = fail\n"
    )
    affected = "affected=Affected('vllm', fixed='0.9'), evidence=Own()"
    registry = load_fakes(fake_bad=f"{own}\nQUIRK = make('fake-bad', {affected})", fake_good=GOOD)

    plan = registry.resolve(make_context(packages={"vllm": "0.1.dev1"}), Switches())

    assert {verdict.id: verdict.state for verdict in plan.verdicts}["fake-bad"] is State.UNKNOWN


@pytest.mark.parametrize("what", ["Default('engine.seed', call)", "Advise(call)"])
@pytest.mark.parametrize("error", ["SystemExit(4)", "OSError('no value')"])
def test_a_function_in_a_declaration_that_fails_refuses_the_run_and_names_its_quirk(
    load_fakes: LoadFakes, make_context: MakeContext, what: str, error: str
) -> None:
    source = f"def call(context):\n    raise {error}\n\nQUIRK = make('fake-bad', adjustments={what})"

    plan = load_fakes(fake_bad=source, fake_good=GOOD).resolve(make_context(), Switches())

    (refusal,) = plan.refusals
    assert (refusal.kind, refusal.quirks[0].id) == ("broken", "fake-bad")


def test_a_match_on_a_fact_that_does_not_exist_is_unknown_with_the_nearest_name(
    load_fakes: LoadFakes, make_context: MakeContext
) -> None:
    match = "match=Fact('model.model_typ').one_of('qwen3')"

    plan = load_fakes(fake_bad=f"QUIRK = make('fake-bad', {match})").resolve(make_context(), Switches())

    (verdict,) = plan.verdicts
    assert verdict.state is State.UNKNOWN
    assert verdict.because.endswith("(no fact has that name; did you mean 'model.model_type'?)")


@pytest.mark.parametrize("name", ["größe", "модель", "模型", "emoji-🙂", "é", "\uff21", "tab\there", "zero\u200bwidth"])
def test_an_id_with_other_than_plain_letters_is_a_broken_plugin_that_says_so(load_fakes: LoadFakes, name: str) -> None:
    _, error = good_and_bad(load_fakes, f"@hookimpl\ndef quirks_declare():\n    return [make({name!r})]")

    assert "the id must be lower-case words" in error


@pytest.mark.parametrize("name", ["all", "third-party", "logprobs"])
def test_an_id_that_is_a_switchs_name_is_refused(load_fakes: LoadFakes, name: str) -> None:
    good_and_bad(load_fakes, f"@hookimpl\ndef quirks_declare():\n    return [make({name!r})]")


def test_a_title_and_reason_in_any_language_reach_the_plan(load_fakes: LoadFakes, make_context: MakeContext) -> None:
    registry = load_fakes(fake_good="QUIRK = make('fake-good', title='Größe 模型 🙂')")

    plan = registry.resolve(make_context(), Switches())

    assert "Größe 模型 🙂" in plan.to_json()
    assert Plan.model_validate_json(plan.to_json()) == plan


@pytest.mark.timeout(120)
def test_ten_thousand_declarations_load_and_resolve(load_fakes: LoadFakes, make_context: MakeContext) -> None:
    many = 'return [make(f"fake-{n}", match=model_type("qwen3" if n % 100 == 0 else f"m{n}")) for n in range(10_000)]'
    registry = load_fakes(fake_many=f"@hookimpl\ndef quirks_declare():\n    {many}\n")

    plan = registry.resolve(make_context(), Switches())

    assert (len(registry.loaded), len(plan.verdicts), len(plan.active)) == (10_000, 10_000, 100)
    assert len(plan.adjustments[0].quirks) == 100


@pytest.mark.usefixtures("impatient")
def test_what_hangs_does_not_keep_the_program_alive(load_fakes: LoadFakes) -> None:
    load_fakes(fake_hangs_for_good=f"{HANG}\nQUIRK = 1")

    left = [thread for thread in threading.enumerate() if thread.name == "model-quirks plugin"]
    assert left
    assert all(thread.daemon for thread in left)
