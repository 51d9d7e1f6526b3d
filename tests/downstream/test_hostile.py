"""Hostile and clumsy plugins: each is one named row or warning, the rest works, and nothing ends in a traceback.

The plugins are in ``hostile_broken.txt`` and ``hostile_failing.txt``. They are all installed at once, as bare modules with the
metadata that pip writes, so that each must bear all the others.
"""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Environment, Outcome

    MakeSite = Callable[[Mapping[str, str]], Path]

#: What every plugin starts with. ``make`` declares a quirk that concerns every rollout.
HEAD = """
import math, os, sys, time
from quirks_core import *
from quirks_core.match import Match
from quirks_core.probes import Probe
from quirks_core.trace import Answer, Leaf, Trace

def make(id, **changes):
    fields = dict(
        title="Something goes wrong",
        flag="sleep",
        match=purpose("rollout"),
        adjustments=Advise("take care"),
        severity=Severity.SLOW,
        references=report("https://example.org/1"),
    )
    return Quirk(id=id, **{**fields, **changes})

"""
#: The one that must go on working beside all others; it is loaded after most of them.
GOOD = {"good": 'QUIRK = make("good", adjustments=Require("engine.enforce_eager", True))'}
LIMIT = {"MODEL_QUIRKS_TIME_LIMIT_S": "2"}
#: A row must be readable, whatever a plugin put into its error.
_LONGEST_ROW = 2000


def plugins(file: str) -> dict[str, tuple[str, str]]:
    """Reads a file of plugins: by name, the words that the report must hold, and the source."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    found = re.findall(r"^=== ([a-z0-9-]+): *(.*)\n((?:(?!=== ).*\n)*)", text, re.MULTILINE)
    return {name: (words, source) for name, words, source in found}


BROKEN = plugins("hostile_broken.txt")
FAILING = plugins("hostile_failing.txt")


@pytest.fixture(scope="module")
def make_site(tmp_path_factory: pytest.TempPathFactory) -> MakeSite:
    """Makes a folder of installed distributions, one for each plugin, and the good one."""

    def make(sources: Mapping[str, str]) -> Path:
        site = tmp_path_factory.mktemp("site")
        for name, source in {**sources, **GOOD}.items():
            module = f"hostile_{name.replace('-', '_')}"
            point = f"{module}:QUIRK" if "QUIRK =" in source else module
            install(site, module, f"[model_quirks]\n{name} = {point}\n")
            (site / f"{module}.py").write_text(HEAD + source, encoding="utf-8")
        return site

    return make


def install(site: Path, distribution: str, entry_points: str | bytes, *, version: str = "1.0") -> Path:
    """Writes the metadata of a distribution and returns its folder."""
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_bytes(entry_points if isinstance(entry_points, bytes) else entry_points.encode())
    return info


def plan_of(environment: Environment, *arguments: str, **variables: str) -> Any:
    """The plan of a tiny model, which some quirk may refuse."""
    outcome = environment.quirks("plan", "--model", environment.model("llama"), "--json", *arguments, **{**LIMIT, **variables})
    assert outcome.code in (0, 1), outcome.err
    return outcome.json


def is_good(plan: Any) -> bool:
    """The good plugin works."""
    return plan["changes"].get("engine.enforce_eager") is True


# Plugins that cannot be loaded


@pytest.fixture(scope="module")
def broken(bare: Environment, make_site: MakeSite) -> Environment:
    """An environment with every plugin that cannot be loaded."""
    return bare.with_site(make_site({name: source for name, (_, source) in BROKEN.items()}))


@pytest.fixture(scope="module")
def doctor(broken: Environment) -> Outcome:
    """What the doctor says of them."""
    return broken.quirks("doctor", "--json", **LIMIT)


@pytest.mark.parametrize("name", BROKEN)
def test_a_plugin_that_cannot_be_loaded_is_one_readable_row(doctor: Outcome, name: str) -> None:
    start = f"plugin {name!r} of hostile_{name.replace('-', '_')} 1.0 ("

    rows = [row["message"] for row in doctor.json if row["message"].startswith(start)]

    assert doctor.code == 3
    (row,) = rows
    assert BROKEN[name][0] in row
    assert "\n" not in row
    assert len(row) < _LONGEST_ROW


def test_nothing_else_breaks_beside_them(doctor: Outcome, broken: Environment) -> None:
    rows = [row["message"] for row in doctor.json if " is broken: " in row["message"]]

    plan = plan_of(broken)

    assert len(rows) == len(BROKEN)
    assert is_good(plan)
    assert plan["refusals"] == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["doctor"], 3),
        (["list"], 0),
        (["show", "good"], 0),
        (["show", "import-mute-error"], 3),
        (["plan", "--strict"], 3),
        (["lock", "--output", "never.lock"], 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_every_command_ends_with_the_code_it_documents_beside_broken_plugins(
    broken: Environment, arguments: list[str], code: int
) -> None:
    more = ["--model", str(broken.model("llama"))] if arguments[0] == "plan" else []

    outcome = broken.quirks(*arguments, *more, **LIMIT)

    assert outcome.code == code, outcome.out + outcome.err


# Plugins that fail while a plan is made


@pytest.fixture(scope="module")
def failing(bare: Environment, make_site: MakeSite) -> Environment:
    """An environment with every plugin that fails later, and modules that cannot be read."""
    site = make_site({name: source for name, (_, source) in FAILING.items()})
    (site / "unreadable.py").write_bytes(b"\xff\xfe\x00")
    (site / "wrong_syntax.py").write_text("def broken(:\n", encoding="utf-8")
    for source_build in ("wrong-syntax", "json"):
        install(site, source_build, "", version="0.1.dev1")
    return bare.with_site(site)


@pytest.fixture(scope="module")
def plan(failing: Environment) -> Any:
    """The plan beside them."""
    return plan_of(failing)


@pytest.mark.parametrize("name", FAILING)
def test_a_plugin_that_fails_later_is_named_in_the_plan(plan: Any, name: str) -> None:
    said = [*plan["warnings"], *(refusal["reason"] for refusal in plan["refusals"])]
    refused = {quirk["id"] for refusal in plan["refusals"] for quirk in refusal["quirks"]}

    words = FAILING[name][0]

    assert name in {verdict["id"] for verdict in plan["verdicts"]}
    assert any(words in text for text in said)
    assert not words or name in refused or any(name in text for text in said)


def test_nothing_else_fails_beside_them(plan: Any) -> None:
    refused = {quirk["id"] for refusal in plan["refusals"] for quirk in refusal["quirks"]}

    assert is_good(plan)
    assert refused <= FAILING.keys()


def test_no_plugin_changes_the_facts_that_others_see(plan: Any) -> None:
    assert plan["context"]["settings"]["engine.load_format"] == "dummy"
    assert plan["context"]["model"]["config"] == {"model_type": "llama"}


def test_the_plan_beside_them_has_one_digest(failing: Environment, plan: Any) -> None:
    assert plan_of(failing, PYTHONHASHSEED="7")["digest"] == plan["digest"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["explain", "good"],
        ["explain", "value-object"],
        ["explain", "match-leaf-of-objects"],
        ["show", "probe-mute"],
        ["matrix", "--vllm", "0.9.1,0.32.0"],
        ["doctor"],
        ["audit-lifecycle"],
        ["lock", "--output", "failing.lock"],
    ],
    ids=" ".join,
)
def test_every_command_ends_with_a_code_it_documents_beside_failing_plugins(failing: Environment, arguments: list[str]) -> None:
    more = ["--model", str(failing.model("llama"))] if arguments[0] in ("plan", "explain", "matrix") else []

    outcome = failing.quirks(*arguments, *more, **LIMIT)

    assert outcome.code in (0, 1, 2, 3), outcome.err
    assert outcome.out + outcome.err


# Plugins that hang


HANGING = {
    "hangs-in-match": """
        class Hangs(Match):
            def trace(self, facts): time.sleep(1e6)
        QUIRK = make("hangs-in-match", match=Hangs())
        """,
    "hangs-in-names": """
        class Hangs(Match):
            def trace(self, facts): return Trace.of(Leaf("a", "b", "c", Answer.YES))
            def facts(self): time.sleep(1e6)
        QUIRK = make("hangs-in-names", match=Hangs())
        """,
    "hangs-in-value": """
        def value(context): time.sleep(1e6)
        QUIRK = make("hangs-in-value", adjustments=Default("engine.seed", value))
        """,
    "hangs-in-probe": """
        class Hangs(Probe):
            def source(self): return "json"
            def answer(self): time.sleep(1e6)
        QUIRK = make("hangs-in-probe", affected=Affected("json", fixed="9"), evidence=Hangs())
        """,
    "hangs-in-facts": """
        from collections.abc import Mapping
        class Facts(Mapping):
            def __getitem__(self, key): return 1
            def __len__(self): return 1
            def __iter__(self): time.sleep(1e6)
        @hookimpl
        def quirks_declare(): return [make("hangs-in-facts")]
        @hookimpl
        def quirks_facts(): return Facts()
        """,
    "hangs-in-declare": """
        @hookimpl
        def quirks_declare():
            while True: time.sleep(1)
        """,
}


@pytest.mark.parametrize("name", HANGING)
def test_what_hangs_anywhere_is_given_up_and_named_with_the_limit(bare: Environment, make_site: MakeSite, name: str) -> None:
    site = make_site({name: textwrap.dedent(HANGING[name])})
    install(site, "json", "", version="0.1.dev1")  # a version that says nothing, so that the probe is asked

    plan = plan_of(bare.with_site(site), MODEL_QUIRKS_TIME_LIMIT_S="1")

    said = [*plan["warnings"], *(str(refusal) for refusal in plan["refusals"])]
    ends = ("did not return within 1 s", "cannot be decided")
    assert any(name in text and any(words in text for words in ends) for text in said), said
    assert is_good(plan)


# Metadata

METADATA = {
    "no-module": b"[model_quirks]\nno-module = not a module !\n",
    "no-name": b"[model_quirks]\n = hostile_good:QUIRK\n",
    "no-section": b"x = y\n",
    "markup": b"[model_quirks]\nx[/b] = y:[bold\n",
    "not-ascii": "[model_quirks]\ngröße = größe:日本\n".encode(),
    "twice": b"[model_quirks]\ntwice = no_such_a:Q\ntwice = no_such_b:Q\n",
    "empty": b"",
}
#: What Python's own reader of metadata cannot take, so that every tool on the installation fails.
UNREADABLE = {"no-equals": b"[model_quirks]\nx\n", "not-utf-8": b"[model_quirks]\nx\xff = y:z\n"}


@pytest.fixture(scope="module")
def clumsy(bare: Environment, make_site: MakeSite) -> Environment:
    """An environment with distributions whose metadata is wrong in every way, or missing."""
    site = make_site({})
    for name, text in METADATA.items():
        install(site, f"dist-{name}", text)
    (install(site, "dist-nameless", b"[model_quirks]\nnameless = no_such_c:Q\n") / "METADATA").unlink()
    (install(site, "dist-versionless", b"[model_quirks]\nversionless = no_such_d:Q\n") / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: dist-versionless\n", encoding="utf-8"
    )
    return bare.with_site(site)


def test_wrong_metadata_of_one_distribution_hides_no_other(clumsy: Environment) -> None:
    listed = clumsy.quirks("list", "--json")

    assert listed.code == 0
    names = [row["id"] for row in listed.json]
    assert {"good", "größe", "no-module", "v1-runtime", "versionless", "x[/b]"} <= set(names)
    assert is_good(plan_of(clumsy))


def test_a_person_can_read_the_list_whatever_the_metadata_hold(clumsy: Environment) -> None:
    listed = clumsy.quirks("list")

    assert listed.code == 0
    for text in ("x[/b]", "größe", "not a module !"):
        assert text in listed.out


def test_wrong_metadata_are_rows_that_name_the_distribution(clumsy: Environment) -> None:
    doctor = clumsy.quirks("doctor", "--json")

    assert doctor.code == 3
    rows = [row["message"] for row in doctor.json if row["level"] == "error"]
    for name in ("no-module", "markup", "not-ascii", "twice", "nameless", "versionless"):
        assert any(f"dist-{name}" in row.replace("_", "-") for row in rows), (name, rows)


@pytest.mark.parametrize("name", UNREADABLE)
def test_metadata_that_nobody_can_read_are_named_and_end_no_command_in_a_traceback(
    bare: Environment, make_site: MakeSite, name: str
) -> None:
    site = make_site({})
    install(site, f"dist-{name}", UNREADABLE[name])
    environment = bare.with_site(site)

    listed = environment.quirks("list", "--json")
    doctor = environment.quirks("doctor", "--json")

    assert (listed.code, doctor.code) == (0, 3)
    assert "good" in {row["id"] for row in listed.json}
    assert f"dist-{name}" in doctor.out.replace("_", "-")


# Plugins that meddle with the process

MEDDLING = {
    "prints": 'print("hello")\nQUIRK = make("prints")',
    "prints-in-hook": """
        @hookimpl
        def quirks_declare():
            print("hello")
            return [make("prints-in-hook")]
        @hookimpl
        def quirks_facts():
            print("hello again")
            return {}
        """,
    "changes-folder": 'os.chdir("/")\nQUIRK = make("changes-folder")',
    "sets-variables": """
        os.environ.update(VLLM_USE_V1="0", NCCL_DEBUG="INFO", MODEL_QUIRKS_DISABLE="good")
        QUIRK = make("sets-variables")
        """,
    "starts-thread": """
        import threading
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        QUIRK = make("starts-thread")
        """,
    "deletes-modules": """
        for name in [name for name in sys.modules if name.startswith("quirks_core")]:
            del sys.modules[name]
        QUIRK = make("deletes-modules")
        """,
}


@pytest.mark.parametrize("name", MEDDLING)
def test_a_plugin_that_meddles_with_the_process_spoils_nobody_elses_plan(
    bare: Environment, make_site: MakeSite, name: str
) -> None:
    environment = bare.with_site(make_site({name: textwrap.dedent(MEDDLING[name])}))
    environment.model("llama")

    plan = environment.quirks("plan", "--model", "models/llama", "--json")

    assert plan.code == 0, plan.out + plan.err
    assert is_good(plan.json)
    assert plan.json["context"]["environment"] == {}


def test_facts_cannot_stand_for_those_of_the_run(bare: Environment, make_site: MakeSite) -> None:
    site = make_site({})
    for distribution in ("packages", "model", "env"):
        install(site, distribution, f"[model_quirks]\n{distribution} = takes_{distribution}\n")
        (site / f"takes_{distribution}.py").write_text(
            f"{HEAD}@hookimpl\ndef quirks_declare(): return [make('takes-{distribution}')]\n"
            "@hookimpl\ndef quirks_facts():\n"
            "    return {'vllm': '0.1.0', 'config.num_experts': 8, 'VLLM_USE_V1': '0', 'model_type': 'gemma3'}\n",
            encoding="utf-8",
        )
    environment = bare.with_site(site)

    explained = [
        environment.quirks("explain", name, "--model", environment.model("gemma3_text"), "--json").json
        for name in ("gemma-normalizer-dummy-load", "v1-runtime")
    ]

    got = {leaf["fact"]: leaf["got"] for verdict in explained for leaf in verdict["trace"]}
    assert got["packages.vllm"] != "0.1.0"
    assert got["model.model_type"] == "gemma3_text"


# Many and long


def test_ten_thousand_declarations_make_a_plan(
    bare: Environment, make_site: MakeSite, capsys: pytest.CaptureFixture[str]
) -> None:
    many = """
        @hookimpl
        def quirks_declare():
            for number in range(10_000):
                yield make(f"many-{number}", match=model_type("llama", f"llama{number}") & Fact("model.is_moe").is_true())
        """
    chain = """
        @hookimpl
        def quirks_declare():
            return [make(f"chain-{number}", supersedes=f"chain-{number + 1}") for number in range(10_000)]
        """
    environment = bare.with_site(make_site({"many": textwrap.dedent(many), "chain": textwrap.dedent(chain)}))

    start = time.perf_counter()
    plan = plan_of(environment, MODEL_QUIRKS_TIME_LIMIT_S="60")
    with capsys.disabled():
        print(f" {len(plan['verdicts'])} quirks: {time.perf_counter() - start:.1f} s ", end="")  # noqa: T201  # no assertion

    states = [verdict["state"] for verdict in plan["verdicts"] if verdict["id"].startswith("chain-")]
    assert len(plan["verdicts"]) > 20_000
    assert (states.count("active"), states.count("superseded")) == (1, 9_999)
    assert is_good(plan)


def test_a_circle_of_ten_thousand_is_found(bare: Environment, make_site: MakeSite) -> None:
    circle = """
        @hookimpl
        def quirks_declare():
            return [make(f"circle-{number}", supersedes=f"circle-{(number + 1) % 10_000}") for number in range(10_000)]
        """

    plan = plan_of(bare.with_site(make_site({"circle": textwrap.dedent(circle)})), MODEL_QUIRKS_TIME_LIMIT_S="60")

    assert any("circular supersedes" in warning for warning in plan["warnings"])
    assert max(map(len, plan["warnings"])) < _LONGEST_ROW
    assert is_good(plan)


def test_thousands_of_keys_and_endless_texts_make_a_plan(bare: Environment, make_site: MakeSite) -> None:
    keys = 'QUIRK = make("keys", adjustments=Require("engine.hf_overrides", {f"key-{n}": n for n in range(5_000)}))'
    texts = 'QUIRK = make("texts", title="word " * 400_000, adjustments=Advise("word " * 400_000))'

    environment = bare.with_site(make_site({"keys": keys, "texts": texts}))

    plan = plan_of(environment)
    seen = environment.quirks("plan", "--model", environment.model("llama"))

    assert seen.code == 0
    assert len(plan["changes"]["engine.hf_overrides"]) == 5_000
    assert is_good(plan)


# What a person or a program sees


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "--json"], ["explain", "umlaut"], ["show", "umlaut"], ["doctor"]])
def test_a_terminal_without_unicode_shows_what_it_can(bare: Environment, make_site: MakeSite, arguments: list[str]) -> None:
    umlaut = 'QUIRK = make("umlaut", title="Größe → 日本", adjustments=Advise("Größe"))'
    environment = bare.with_site(make_site({"umlaut": umlaut}))
    more = ["--model", str(environment.model("llama"))] if arguments[0] in ("plan", "explain") else []

    outcome = environment.quirks(*arguments, *more, PYTHONIOENCODING="ascii", PYTHONUTF8="0")

    assert outcome.code == 0, outcome.err
    if "--json" in arguments:
        assert json.loads(outcome.out)["verdicts"]


def test_a_value_that_has_no_name_can_be_shown(bare: Environment, make_site: MakeSite) -> None:
    nameless = """
        import functools
        class Value:
            def __call__(self, context): return 3
        QUIRK = make(
            "nameless",
            adjustments=[Default("engine.seed", functools.partial(int, "7")), Default("engine.max_model_len", Value())],
        )
        """
    environment = bare.with_site(make_site({"nameless": textwrap.dedent(nameless)}))

    shown = environment.quirks("show", "nameless", "--json")

    assert shown.code == 0
    assert [text.startswith("default engine.") for text in shown.json["adjustments"]] == [True, True]


def test_a_switch_saves_one_from_waiting_for_a_plugin_that_hangs(bare: Environment, make_site: MakeSite) -> None:
    environment = bare.with_site(make_site({"waits": "time.sleep(1e6)"}))
    off = ["--disable", "distribution:hostile_waits"]

    explained = environment.quirks(
        "explain", "good", "--model", environment.model("llama"), *off, MODEL_QUIRKS_TIME_LIMIT_S="3600"
    )

    assert explained.code == 0
    assert "good applies" in explained.out
