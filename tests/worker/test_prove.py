"""Proofs: real processes with scenarios of a fake distribution, and what follows from what they saw. No engine runs here."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest
from declarations import declared
from patience import HUNG_S, until
from programs import run_python

from quirks_core import Kind, PairedRun, Quirk, StaticProbe, SymbolProbe, platform
from quirks_core.base import child_process
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import State
from worker.lab.kit import proof as records
from worker.lab.kit.lab import Outcome
from worker.lab.kit.proof import Conclusion, Finding, Run
from worker.lab.kit.prove import conclude, prove, run_scenario, together

#: The quirk's module: its declaration, and scenarios.
_MODULE = (
    declared(
        "acme-limit",
        match='purpose("serve")',
        affected='Affected("vllm", fixed="0.0.1")',
        adjustments='Default("request.timeout_s", 5.0)',
        severity="Severity.CRASH",
    )
    + """
import asyncio, os, signal
from worker.lab.kit.lab import CannotShowError, Outcome

def _value(lab):
    model = lab.folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    return lab.plan(model, {"purpose": "eval"}).value("request.timeout_s")

async def needed(lab):
    value = _value(lab)
    return Outcome(value == 5.0, "time limit", str(value), "5.0")

async def not_needed(lab):
    return Outcome(True, "time limit", str(_value(lab)), "any")

async def stays_on(lab):
    os.environ.pop("MODEL_QUIRKS_DISABLE", None)
    os.environ["MODEL_QUIRKS_FORCE"] = "acme-limit"
    return await needed(lab)

async def without_a_plan(lab):
    return Outcome("MODEL_QUIRKS_FORCE" in os.environ, "the environment", "as it is", "the variable")

async def variables(lab):
    names = [name for name in sorted(os.environ) if name.startswith("MODEL_QUIRKS_")]
    return Outcome(True, "the environment", " ".join(names), "ours")

async def engine_error(lab):
    from worker import VllmAsyncGenerationWorker
    VllmAsyncGenerationWorker({"model": "m", "server": {"nonsense": 1}})

async def engine_error_with_a_cause(lab):
    print("(Worker pid=7) ERROR 11-21 11:51:42 [executor.py:1063] NotImplementedError", flush=True)
    await engine_error(lab)

async def own_error(lab):
    raise KeyError("oops")

async def cannot_show(lab):
    raise CannotShowError("only a CPU with AMX shows it")

async def wrong_type(lab):
    return {"passed": True}

async def dies(lab):
    os.kill(os.getpid(), signal.SIGSEGV)

async def is_killed(lab):
    os.kill(os.getpid(), signal.SIGKILL)

async def vanishes(lab):
    print("last words", flush=True)
    os._exit(7)

async def mode(lab):
    from worker.lab.kit.lab import configuration
    _value(lab)
    eager, off = configuration("m")["engine"].get("enforce_eager"), os.environ.get("TORCHDYNAMO_DISABLE")
    return Outcome(eager is True, "the engine", f"eager {eager}, Dynamo disabled {off}", "eager")

async def hangs(lab):
    await asyncio.sleep(600)

async def hangs_on_the_way_out(lab):
    import atexit, time
    atexit.register(time.sleep, 600)
    atexit.register((lab.folder / "on its way out").touch)
    return await not_needed(lab)
"""
)
_WITH = {"MODEL_QUIRKS_FORCE": "acme-limit"}
_UNDECLARED = "an error that the quirk does not declare (crash=…)"


@pytest.fixture
def acme(site, install, monkeypatch):
    """An installed distribution with a quirk and scenarios, which processes that are started here find as well."""
    install("acme-quirks", {"acme-limit": "acme_quirks:QUIRK"}, acme_quirks=_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(site))


_SEEN: dict[object, Run] = {}


def run_once(scenario, quirk_id, switches, folder, timeout_s, crash=""):
    """Runs a scenario in a process of its own, once for all tests that read what it saw."""
    key = (scenario, *switches, crash)
    if key not in _SEEN:
        _SEEN[key] = run_scenario(scenario, quirk_id, switches, folder, timeout_s, crash)
    return _SEEN[key]


@pytest.fixture
def run(acme, tmp_path):  # noqa: ARG001 - for its effect
    """Runs one of the scenarios above."""

    def start(name, switches=_WITH, *, timeout_s=HUNG_S, crash=""):
        return run_once(f"acme_quirks:{name}", "acme-limit", switches, tmp_path / "lab", timeout_s, crash)

    return start


def quirk(*evidence, **changes):
    """The fake distribution's quirk, with some of its scenarios or with probes as evidence."""
    given = [PairedRun(f"acme_quirks:{item}") if isinstance(item, str) else item for item in evidence]
    declaration = {**import_module("acme_quirks").DECLARATION, "evidence": given, **changes}
    return Loaded(Quirk(**declaration), "acme-quirks", "1.2", "acme-limit")


@pytest.fixture
def proven(acme, tmp_path, monkeypatch):  # noqa: ARG001 - for its effect
    """Proves that quirk."""
    monkeypatch.setattr("worker.lab.kit.prove.run_scenario", run_once)

    def start(*evidence, notify=lambda _: None, kind=Kind.WORKAROUND):
        return prove(quirk(*evidence, kind=kind), tmp_path / "lab", timeout_s=HUNG_S, notify=notify)

    return start


@pytest.mark.parametrize(
    ("scenario", "conclusion", "passes", "calls_for_action"),
    [("needed", Conclusion.NEEDED, False, False), ("not_needed", Conclusion.NOT_NEEDED, True, True)],
)
def test_a_quirk_is_needed_if_its_scenario_fails_without_it(proven, scenario, conclusion, passes, calls_for_action):
    notified = []

    proof = proven(scenario, notify=notified.append)

    assert (proof.conclusion, proof.calls_for_action) == (conclusion, calls_for_action)
    (finding,) = proof.findings
    runs = finding.with_quirk, finding.without_quirk
    assert [(run.passed, run.outcome.got, run.states) for run in runs] == [
        (True, "5.0", (State.ACTIVE,)),  # neither its match nor its range says so
        (passes, "None", (State.DISABLED,)),
    ]
    assert notified == ["acme-limit with the quirk", "acme-limit without the quirk"]


def test_a_first_run_without_an_outcome_is_the_only_one(proven):
    proof = proven("own_error")

    assert (proof.conclusion, proof.calls_for_action) == (Conclusion.INCONCLUSIVE, True)
    assert proof.reason == proof.proved.doubt == "with the quirk: the scenario is broken: KeyError: 'oops'"
    assert proof.findings[0].without_quirk is None


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("stays_on", "^without the quirk: it was to be off in the plan, but was active$"),
        ("without_a_plan", "the scenario made no plan through its lab"),
    ],
)
def test_runs_that_differ_by_more_than_the_quirk_prove_nothing(proven, scenario, reason):
    proof = proven(scenario)

    assert proof.conclusion is Conclusion.INCONCLUSIVE
    assert re.search(reason, proof.reason)


def test_the_callers_own_switches_do_not_reach_a_scenario(run, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "all")
    monkeypatch.setenv("MODEL_QUIRKS_STRICT", "1")

    assert run("variables").outcome.got == "MODEL_QUIRKS_FORCE"


@pytest.mark.parametrize(
    ("name", "crash", "declared", "words", "died_of"),
    [
        ("engine_error_with_a_cause", "NotImplementedError", True, "UsageError: server.nonsense", ""),
        ("dies", "SIGSEGV", True, "it died of SIGSEGV", "SIGSEGV"),
        ("engine_error", "", False, f"{_UNDECLARED}: UsageError: server.nonsense", ""),
        ("dies", "another error", False, f"{_UNDECLARED}: it died of SIGSEGV", ""),
    ],
    ids=["logged by another process", "a signal", "none is declared", "another one is declared"],
)
def test_only_the_error_that_a_quirk_declares_is_an_outcome(run, name, crash, declared, words, died_of):
    found = run(name, crash=crash)

    assert (found.outcome is not None, found.passed, found.crash) == (declared, False, died_of)
    assert (found.outcome.got if declared else found.error).startswith(words)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_error", "the scenario is broken: KeyError: 'oops'"),
        ("cannot_show", "only a CPU with AMX shows it"),
        ("wrong_type", "the scenario is broken: TypeError: acme_quirks:wrong_type returned dict, not an Outcome"),
        ("missing", "the scenario is broken: AttributeError: module 'acme_quirks' has no attribute 'missing'"),
        ("vanishes", "the process ended with exit code 7 and without a result; last words"),
        ("is_killed", "the process was killed from outside (SIGKILL)"),
    ],
)
def test_a_run_that_shows_nothing_has_a_reason(run, name, message):
    found = run(name)

    assert (found.outcome, found.error) == (None, message)


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("platform", "eager", "got"),
    [
        ("cpu", "0", "eager True, Dynamo disabled 1"),
        ("cuda", "0", "eager None, Dynamo disabled None"),
        ("cuda", "1", "eager True, Dynamo disabled 1"),
    ],
)
def test_engines_on_a_gpu_are_vllms_defaults_unless_eager(tmp_path, platform, eager, got):
    code = f"""
from worker.lab.kit import evidence, scenario
evidence.installed_platform = lambda: "{platform}"
scenario.main(["acme_quirks:mode", "acme-limit", "result", "lab"])
print(evidence.dependencies(__import__("acme_quirks").QUIRK).get("mode", ""))
"""
    environ = {name: value for name, value in os.environ.items() if name != "TORCHDYNAMO_DISABLE"}

    done = run_python("-c", code, cwd=tmp_path, environ=environ, QUIRKS_LAB_EAGER=eager)

    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result").read_text())
    assert result["outcome"]["got"] == got
    assert done.stdout.strip() == ("" if result["outcome"]["passed"] else "graphs")


def test_a_scenario_that_hangs_is_killed(run):
    found = run("hangs", timeout_s=3.0)

    assert (found.outcome, found.error) == (None, "not done after 3 s, so it was killed")


def test_a_process_that_hangs_at_its_end_keeps_its_outcome(run, tmp_path):
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run, "hangs_on_the_way_out")
        until((tmp_path / "lab" / "on its way out").exists, "the end of the scenario")
        child_process.end_all()

    assert running.result().passed


def _run(*, passed=None, state=State.ACTIVE, crash=""):
    outcome = None if passed is None else Outcome(passed, "m", "g", "e")
    return Run(outcome=outcome, error="" if outcome else "broken", crash=crash, states=() if crash else (state,))


@pytest.mark.parametrize(
    ("with_quirk", "without_quirk", "conclusion", "reason"),
    [
        ({"passed": False}, {"passed": False}, Conclusion.INCONCLUSIVE, "fails with the quirk and fails without"),
        ({"passed": False}, {"passed": True}, Conclusion.INCONCLUSIVE, "fails with the quirk and passes without"),
        ({"passed": True}, {"passed": None}, Conclusion.INCONCLUSIVE, "without the quirk: broken"),
        ({"passed": True, "state": State.SUPERSEDED}, {"passed": False}, Conclusion.INCONCLUSIVE, "but was superseded"),
        ({"passed": False, "crash": "SIGSEGV"}, {"passed": False}, Conclusion.INCONCLUSIVE, "died of SIGSEGV"),
        ({"passed": True}, {"passed": False, "crash": "SIGSEGV"}, Conclusion.NEEDED, "fails without"),
    ],
)
def test_a_pair_decides_if_its_trusted_run_with_the_quirk_passes(with_quirk, without_quirk, conclusion, reason):
    found, why = conclude(_run(**with_quirk), _run(**{"state": State.DISABLED, **without_quirk}))

    assert found is conclusion
    assert reason in why


@pytest.mark.parametrize(
    ("paired", "probed", "conclusion", "disagreement"),
    [
        ([], [], "INCONCLUSIVE", False),
        (["NOT NEEDED", "NEEDED"], [], "NEEDED", False),
        (["NOT NEEDED", "INCONCLUSIVE"], [], "INCONCLUSIVE", False),
        (["NOT NEEDED", "NOT NEEDED"], [], "NOT NEEDED", False),
        (["NEEDED"], ["NOT NEEDED"], "NEEDED", True),
        (["NOT NEEDED"], ["NEEDED"], "NOT NEEDED", True),
        (["INCONCLUSIVE"], ["NEEDED"], "NEEDED", False),
        (["NEEDED"], ["INCONCLUSIVE"], "NEEDED", False),
    ],
)
def test_what_was_run_wins_over_what_was_read(paired, probed, conclusion, disagreement):
    findings = [
        Finding(kind=kind, evidence="e", conclusion=Conclusion(text), reason="r")
        for kind, texts in ((records.Kind.STATIC_PROBE, probed), (records.Kind.PAIRED_RUN, paired))
        for text in texts
    ]

    found, reason, contradiction = together(findings)

    assert (found, contradiction) == (Conclusion(conclusion), disagreement)
    assert ("; but" in reason) is disagreement


_THERE, _GONE = (SymbolProbe("acme_quirks:_value", present_means_affected=there) for there in (True, False))
_AS_DECLARED = "by static probe: the installed source is as declared"


@pytest.mark.parametrize(
    ("evidence", "kind", "conclusion", "action", "reason"),
    [
        (_THERE, Kind.WORKAROUND, Conclusion.NEEDED, False, "by static probe: "),
        (_GONE, Kind.WORKAROUND, Conclusion.NOT_NEEDED, True, "by static probe: "),
        (
            StaticProbe("nowhere", "x", found_means_affected=False),
            Kind.WORKAROUND,
            Conclusion.INCONCLUSIVE,
            False,
            "no evidence",
        ),
        (_THERE, Kind.RULE, Conclusion.HOLDS, False, _AS_DECLARED),
        (_GONE, Kind.RULE, Conclusion.DOES_NOT_HOLD, True, _AS_DECLARED.replace("as", "not as")),
        ("needed", Kind.RULE, Conclusion.HOLDS, False, "the scenario passes with the quirk"),
    ],
)
def test_a_proof_speaks_of_what_answered_and_a_rule_s_of_no_bug(proven, evidence, kind, conclusion, action, reason):
    proof = proven(evidence, kind=kind)

    assert (proof.conclusion, proof.calls_for_action, proof.proved.conclusion) == (conclusion, action, conclusion)
    assert proof.reason == proof.findings[0].reason
    assert proof.reason.startswith(reason)


def test_a_record_has_what_both_runs_saw_and_no_folder(proven):
    """No folder of this machine, also where an error names one."""
    proof = proven("own_error")
    reason = "ImportError: cannot import 'x' (/home/a/lib/python3.11/site-packages/vllm/x.py)"
    findings = tuple(item.model_copy(update={"reason": reason}) for item in proof.findings)

    found = proof.model_copy(update={"findings": findings}).proved

    assert found.doubt == "ImportError: cannot import 'x' (site-packages/vllm/x.py)"
    assert proven("needed").proved.seen == "time limit: 5.0 with it, None without it"


@pytest.mark.usefixtures("acme")
def test_a_quirk_of_another_platform_is_not_proven_here(tmp_path):
    proof = prove(quirk("nowhere", match=platform("xpu")), tmp_path)

    assert (proof.conclusion, proof.findings, proof.calls_for_action) == (Conclusion.INCONCLUSIVE, (), False)
    assert "no run on this installation concerns the quirk (platform: wanted" in proof.reason
