"""Broken and clumsy plugins: each is one named row or warning, the rest works, and nothing ends in a traceback.

They are all installed at once, as bare modules with the metadata that pip writes, so that each must bear all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Environment, Outcome

    MakeSite = Callable[[Mapping[str, str]], Environment]

#: What every plugin starts with. ``make`` declares a quirk that concerns every rollout.
HEAD = """
import os, sys
from quirks_core import *
from quirks_core.declaration.probes import Probe
from quirks_core.declaration.trace import Answer

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
DECLARE = "@hookimpl\ndef quirks_declare():\n    "
FACTS = "\n@hookimpl\ndef quirks_facts(context):\n    "

#: Plugins that cannot be loaded, one of each kind: the words that the one row about each must hold, and the source.
BROKEN = {
    "import-exit": ("SystemExit", "sys.exit(0)"),
    "import-markup": ("first [/red] [bold", "raise ValueError('first\\n[/red] [bold')"),
    "names-nothing": ("neither a Quirk nor a plugin", "# an empty module"),
    "declare-midway": ("half way", f"{DECLARE}yield make('declare-midway')\n    raise OSError('half way')"),
    "hook-misspelt": ("quirks_fact", f"{DECLARE}return []\n@hookimpl\ndef quirks_fact(context): return {{}}"),
    "supersedes-itself": ("circular supersedes", 'QUIRK = make("supersedes-itself", supersedes="supersedes-itself")'),
    "v1-runtime": ("taken by model-quirks", 'QUIRK = make("v1-runtime")'),
}
MATCH = "class Own(Match):\n    def trace(self, facts): {}\nQUIRK = make({!r}, match=Own())"
VALUE = "def value(context): {}\nQUIRK = make({!r}, adjustments=Default('engine.seed', value))"
PROBE = """
class Own(Probe):
    def source(self): return "json"
    def answer(self, source): raise OSError("no probe")
QUIRK = make("probe-raises", affected=Affected("json", fixed="9"), evidence=Own())
"""
PATCH = "QUIRK = make('patch-of-nothing', adjustments=Patch('no_such.module:f', wrapper='a:b', expects='0' * 12))"
#: Plugins that load, and fail while a plan is made: the words of the warning or refusal, and the source.
FAILING = {
    "match-exits": ("SystemExit", MATCH.format("sys.exit(0)", "match-exits")),
    "value-raises": ("no value", VALUE.format("raise OSError('no value')", "value-raises")),
    "facts-raise": ("OSError: no facts", f"{DECLARE}return [make('facts-raise')]{FACTS}raise OSError('no facts')"),
    "facts-taken": (
        "is a fact of every run",
        f"{DECLARE}return [make('facts-taken')]{FACTS}return {{'vllm': '0.1.0'}}",
    ),
    "patch-of-nothing": ("no_such.module:f", PATCH),
    "probe-raises": ("probe-raises cannot be decided", PROBE),
    "prints": (
        "",
        f"print('at import')\n{DECLARE}print('declares')\n    return [make('prints')]{FACTS}print('facts')\n    return {{}}",
    ),
}


def install(site: Path, distribution: str, entry_points: str, *, version: str = "1.0") -> None:
    """Writes the metadata of a distribution."""
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")


@pytest.fixture(scope="module")
def make_site(installed: Callable[..., Environment], tmp_path_factory: pytest.TempPathFactory) -> MakeSite:
    """Makes an environment with a distribution for each plugin, and the good one."""

    def make(sources: Mapping[str, str]) -> Environment:
        site = tmp_path_factory.mktemp("site")
        for name, source in {**sources, **GOOD}.items():
            module = f"hostile_{name.replace('-', '_')}"
            distribution = "packages" if name == "facts-taken" else module  # whose facts would be named packages.vllm
            point = f"{module}:QUIRK" if "QUIRK =" in source else module
            install(site, distribution, f"[model_quirks]\n{name} = {point}\n")
            (site / f"{module}.py").write_text(HEAD + source, encoding="utf-8")
        install(site, "json", "", version="0.1.dev1")  # a source build, so that a probe is asked
        return installed().with_site(site)

    return make


def is_good(plan: Any) -> bool:
    """The good plugin works."""
    return plan["changes"].get("engine.enforce_eager") is True


@pytest.fixture(scope="module")
def broken(make_site: MakeSite) -> Environment:
    """An environment with every plugin that cannot be loaded."""
    return make_site({name: source for name, (_, source) in BROKEN.items()})


@pytest.fixture(scope="module")
def doctor(broken: Environment) -> Outcome:
    """What the doctor says of them."""
    return broken.quirks("doctor", "--json")


@pytest.mark.parametrize("name", BROKEN)
def test_a_plugin_that_cannot_be_loaded_is_one_readable_row(doctor: Outcome, name: str) -> None:
    start = f"plugin {name!r} of hostile_{name.replace('-', '_')} 1.0 ("

    (row,) = [row["message"] for row in doctor.json if row["message"].startswith(start)]

    assert BROKEN[name][0] in row
    assert "\n" not in row


def test_every_command_ends_with_its_documented_code_beside_broken_plugins(doctor: Outcome, broken: Environment) -> None:
    rows = [row["message"] for row in doctor.json if " is broken: " in row["message"]]
    plan = broken.plan("llama")

    codes = {
        " ".join(line[:2]): broken.quirks(*line).code
        for line in (
            ["doctor"], ["show", "good"], ["show", "import-exit"], ["lock", "--output", "never.lock"],
            ["plan", "--strict", "--model", str(broken.model("llama"))],
        )
    }  # fmt: skip

    assert (doctor.code, len(rows)) == (3, len(BROKEN))
    assert is_good(plan)
    assert plan["refusals"] == []
    assert codes == {"doctor": 3, "show good": 0, "show import-exit": 3, "lock --output": 3, "plan --strict": 3}


@pytest.fixture(scope="module")
def failing(make_site: MakeSite) -> Environment:
    """An environment with every plugin that fails later."""
    return make_site({name: source for name, (_, source) in FAILING.items()})


@pytest.fixture(scope="module")
def plan(failing: Environment) -> Any:
    """The plan beside them; JSON, though a plugin prints wherever it can."""
    return failing.plan("llama")


@pytest.mark.parametrize("name", FAILING)
def test_a_plugin_that_fails_later_is_named_in_the_plan(plan: Any, name: str) -> None:
    said = [*(note["text"] for note in plan["warnings"]), *(refusal["reason"] for refusal in plan["refusals"])]
    refused = {quirk["id"] for refusal in plan["refusals"] for quirk in refusal["quirks"]}

    words = FAILING[name][0]

    assert name in {verdict["id"] for verdict in plan["verdicts"]}
    assert any(words in text and (name in text or name in refused) for text in said) or not words


def test_plugins_that_fail_leave_the_rest_of_a_plan_as_it_is(plan: Any) -> None:
    refused = {quirk["id"] for refusal in plan["refusals"] for quirk in refusal["quirks"]}

    assert is_good(plan)
    assert refused == {"value-raises"}
    assert plan["context"]["packages"]["vllm"] != "0.1.0"
    assert "packages.vllm" not in plan["context"]["extra"]


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["explain", "match-exits"], ["show", "probe-raises"], ["doctor"], ["list", "--stage", "any"]],
    ids=" ".join,
)
def test_every_command_ends_with_a_code_it_documents_beside_failing_plugins(failing: Environment, arguments: list[str]) -> None:
    more = ["--model", str(failing.model("llama"))] if arguments[0] in ("plan", "explain") else []

    outcome = failing.quirks(*arguments, *more)

    assert outcome.code in (0, 1), outcome.err
    assert outcome.out


def test_a_terminal_without_unicode_shows_what_it_can(make_site: MakeSite) -> None:
    environment = make_site({"umlaut": 'QUIRK = make("umlaut", title="Größe → 日本", adjustments=Advise("Größe"))'})
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}

    shown = [
        environment.quirks(*line, **ascii_only)
        for line in (["show", "umlaut"], ["doctor"], ["plan", "--model", str(environment.model("llama"))])
    ]

    assert [outcome.code for outcome in shown] == [0, 0, 0]
    assert environment.plan("llama", **ascii_only)["verdicts"]
