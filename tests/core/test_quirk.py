"""The declaration of a quirk and of its examples: everything wrong is said at once, where it stands is kept."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from declarations import declared

from quirks_core import (
    Advise,
    Affected,
    Default,
    Fact,
    Kind,
    PairedRun,
    Quirk,
    Require,
    Severity,
    StaticProbe,
    SymbolProbe,
    environment,
    fix,
    model_type,
    no,
    package,
    platform,
    purpose,
    report,
    setting,
    typed,
    unknown,
    yes,
)
from quirks_core.base.errors import DeclarationError
from quirks_core.declaration.quirk import Location, Reference
from quirks_core.declaration.trace import Answer


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(DeclarationError) as error:
        Quirk(
            id="Not An Id", title="", flag="load_fromat", kind="rule", match="x", adjustments=(), severity="bad", references=()
        )  # fmt: skip

    expected = (
        "quirk 'Not An Id': ",
        "lower-case words",
        "title is empty",
        "did you mean 'load_format'",
        "'rule' is not a kind: Kind.WORKAROUND, Kind.RULE or Kind.FEATURE",
        "match must be made by quirks_core.declaration.match, not 'x'",
        "no adjustments",
        "no references",
        "'bad' is not a severity",
    )
    assert [part for part in expected if part not in str(error.value)] == []


def test_an_id_is_lower_case_words_with_at_most_one_slash(make_quirk):
    good = ("a", "gemma-dummy-load", "my.dist/rope-scaling", "v1_runtime", "x2-y3")
    bad = ("", "A", "a b", "-a", "a-", "a--b", "a/b/c", "a,b", "a\n", "größe", "模型", "\uff21", "a\u200b")

    assert [make_quirk(id=name).id for name in good] == list(good)
    for name in bad:
        with pytest.raises(DeclarationError, match="the id must be lower-case words"):
            make_quirk(id=name)


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        *(({"id": name}, f"quirk {name!r}: the id is a word of the switches") for name in ("all", "third-party", "logprobs")),
        *(({"flag": name}, f"unknown flag '{name}'") for name in ("dist:", "dist:Upper Case")),
        ({"crash": "it ends"}, "it names the error of a crash, but its severity is slow"),
        ({"severity": Severity.CRASH, "crash": "("}, "crash is no regular expression: missing"),
        *(
            ({field: 3}, f"3 in {field} is of the wrong type")
            for field in ("affected", "references", "evidence", "adjustments", "supersedes", "examples")
        ),
        ({"supersedes": "Not An Id"}, "'Not An Id' in supersedes is no id"),
        ({"title": b"bytes"}, "title must be a text"),
        ({"affected": (Affected("vllm", fixed="0.9"), Affected("vllm", introduced="0.8"))}, "overlap: write one range"),
    ],
)
def test_a_part_that_cannot_be_is_refused(make_quirk, declaration, words):
    with pytest.raises(DeclarationError, match=words):
        make_quirk(**declaration)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StaticProbe("vllm.envs", "(", found_means_affected=True), "is no pattern"),
        (lambda: Reference("report", 3), "Reference: url must be a text"),
        (lambda: PairedRun("a:"), r"not of the form 'package\.module:function'"),
        (lambda: yes("qwen3", {"refit.scop": "parameters"}), r"did you mean 'refit\.scope'"),
        (lambda: yes(env={"HF_TOKEN": "x"}), "looks like that of a secret"),
        (lambda: yes(gives={"refit.scop": "parameters"}), r"did you mean 'refit\.scope'"),
        (lambda: yes(defaults={"engine.seed": "one"}), r"engine\.seed takes a whole number"),
        (lambda: no(gives={}), "a run that gets no has no outcome: leave out gives, refuses, advises, patches"),
        (lambda: unknown(purpose="train"), "purpose 'train' is none of rollout, eval, serve"),
    ],
)
def test_the_parts_of_a_quirk_are_checked_at_their_declaration(make, words):
    with pytest.raises(DeclarationError, match=words):
        make()


def test_a_single_item_or_a_list_will_do_for_a_tuple(make_quirk):
    assert [make_quirk(adjustments=one).adjustments for one in (Advise("x"), [Advise("x")])] == [(Advise("x"),)] * 2


def test_the_location_is_the_line_of_the_declaration(write_modules):
    """The name of its folder is its flag, if it names none."""
    here = Quirk(  # the location is this line
        id="here", title="Here", flag="logprobs", match=purpose("rollout"), adjustments=Advise("look"),
        severity=Severity.NOISE, references=report("https://example.org"),
    )  # fmt: skip
    packages = dict.fromkeys(("fake_far/__init__.py", "fake_far/sleep/__init__.py"), "")
    write_modules({**packages, "fake_far/sleep/quirk.py": declared("far", before="del DECLARATION['flag']")})

    far = importlib.import_module("fake_far.sleep.quirk").QUIRK

    assert (str(far.location), far.location.module, far.flag) == ("fake_far/sleep/quirk.py:22", "fake_far.sleep.quirk", "sleep")
    assert "the location is this line" in Path(__file__).read_text(encoding="utf-8").splitlines()[here.location.line - 1]


@pytest.mark.parametrize(
    ("evidence", "runs", "probes"),
    [
        ("()", ["fake_quirk:scenario"], 0),
        ("PairedRun('other:run')", ["other:run"], 0),
        ("[PairedRun('other:run'), SymbolProbe('vllm.envs', True)]", ["other:run"], 1),
        ("SymbolProbe('vllm.envs', True)", ["fake_quirk:scenario"], 1),
    ],
)
def test_a_scenario_is_the_paired_run_of_a_quirk_that_names_none(write_modules, evidence, runs, probes):
    quirk = declared("far", evidence=evidence)
    write_modules({"fake_quirk.py": f"{quirk}\nasync def scenario(lab):\n    return None\n"})

    quirk = importlib.import_module("fake_quirk").QUIRK

    assert [run.scenario for run in quirk.paired_runs] == runs
    assert [type(probe) for probe in quirk.probes] == [SymbolProbe] * probes


def test_a_quirk_asks_for_every_fact_that_it_names(make_quirk):
    nodes = Fact("acme.nodes").above(setting("engine.max_num_seqs"))
    quirk = make_quirk(
        match=model_type("a") & ~typed("engine.seed") & package("xformers", fixed="1"),
        affected=Affected("vllm", fixed="0.9"),
        adjustments=[
            Default("env.NAME", "1"),
            Require("engine.block_size", at_most=16, when=environment("OTHER").is_set()),
            Advise("look", when=nodes),
        ],
    )

    packages = {"packages.xformers", "packages.vllm"}
    settings = {"typed.engine.seed", "env.NAME", "env.OTHER", "engine.block_size", "engine.max_num_seqs"}
    assert quirk.fact_names == {"model.model_type", "acme.nodes", *packages, *settings}


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        (purpose("rollout") & setting("engine.seed").is_set() & typed("engine.seed") & environment("HOME").is_set(), False),
        (setting("engine.any_argument").is_set(), True),
        (platform("cpu"), True),
        (model_type("gemma3"), True),
        (Fact("acme.nodes").above(1), True),
        (package("vllm", fixed="0.9"), True),
    ],
)
def test_a_quirk_knows_whether_some_run_leaves_it_open(make_quirk, condition, answer):
    assert make_quirk(match=condition).can_be_unknown is answer
    assert make_quirk(match=condition, affected=Affected("vllm", fixed="0.9")).can_be_unknown


def test_an_example_becomes_the_facts_of_a_run():
    context = yes(
        {"model_type": "gemma3", "layers": 2},
        {"engine.load_format": "dummy", "engine.no_such_argument": 16},
        vllm="0.9.1",
        packages={"flash_attn": "2.8"},
        platform="cuda",
        env={"ANY_NAME": "1"},
        purpose="eval",
        recipe="grpo",
        name="google/gemma-3",
        extra={"acme.nodes": 4, "environment.unread": ("VLLM_X",)},
    ).context()

    facts = {
        "model.model_type": "gemma3",
        "model.config.layers": 2,
        "model.name": "google/gemma-3",
        "engine.load_format": "dummy",
        "engine.no_such_argument": 16,
        "typed.engine.load_format": True,
        "packages.flash-attn": "2.8",
        "packages.vllm": "0.9.1",
        "platform": "cuda",
        "env.ANY_NAME": "1",
        "purpose": "eval",
        "recipe": "grpo",
        "acme.nodes": 4,
        "environment.unread": ("VLLM_X",),
    }
    assert {name: context.fact(name) for name in facts} == facts
    assert not context.source_known("vllm")


def test_what_an_example_leaves_out_is_open_or_unknown():
    context = unknown().context()
    conditions = (setting("engine.seed").is_set(), typed("engine.seed"), model_type("gemma3"), Fact("platform").is_set())

    assert [example.answer for example in (yes(), no(), unknown())] == [Answer.YES, Answer.NO, Answer.UNKNOWN]
    assert [condition.trace(context).answer for condition in conditions] == ["no", "no", "unknown", "unknown"]


_OURS, _THEIRS = (Location(f"{package}/x.py", 1, f"{package}.x") for package in ("quirks_plugins", "acme"))
_FROM_26 = Affected("vllm", introduced="0.26.0")


@pytest.mark.parametrize(
    ("ranges", "more", "text", "examined"),
    [
        (_FROM_26, {}, "vllm >= 0.26.0 (examined from 0.26 on)", False),
        (Affected("vllm", fixed="0.30"), {}, "vllm < 0.30 (examined from 0.26 on)", False),
        ((), {}, "vllm: examined from 0.26 on", False),
        ((), {"kind": Kind.RULE}, "every version", True),
        (Affected("vllm", introduced="0.29.0"), {}, "vllm >= 0.29.0", True),
        (Affected("vllm", introduced="0.16.0"), {}, "vllm >= 0.16.0", True),
        (Affected("vllm", fixed="0.9.2"), {}, "vllm < 0.9.2", True),
        (_FROM_26, {"location": _THEIRS}, "vllm >= 0.26.0", True),
    ],
)
def test_a_range_that_begins_where_the_examination_does_says_so(make_quirk, ranges, more, text, examined):
    """A third party's range is its own word."""
    quirk = make_quirk(affected=ranges, **{"location": _OURS, **more})

    assert (quirk.versions, quirk.is_examined("vllm", "0.11.0"), quirk.is_examined("vllm", "0.26.0")) == (text, examined, True)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("acme/engine#7", "https://github.com/acme/engine/issues/7"),
        ("acme/engine/pull/7", "https://github.com/acme/engine/pull/7"),
        ("https://example.org/incidents/7", "https://example.org/incidents/7"),
    ],
)
def test_a_reference_is_an_address_or_a_name_on_github(name, url):
    assert (report(name).url, fix(name).url) == (url, url)
