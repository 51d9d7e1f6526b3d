"""Broken and clumsy plugins, all installed at once: each is one named row or warning, and the rest works.

Each kind of fault has a test of its own in `tests/core`; here they are modules with the metadata that pip writes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Environment

#: What every plugin starts with. ``make`` declares a quirk that concerns every rollout.
HEAD = """
import os, sys
from quirks_core import *

def make(id, **changes):
    fields = dict(
        title="Größe → 日本",
        flag="sleep",
        match=purpose("rollout"),
        adjustments=Advise("take care"),
        severity=Severity.SLOW,
        references=report("https://example.org/1"),
    )
    return Quirk(id=id, **{**fields, **changes})

"""
#: The one that must go on working beside all others; it is loaded after most of them.
GOOD = 'QUIRK = make("good", adjustments=Require("engine.enforce_eager", True))'
DECLARE = "@hookimpl\ndef quirks_declare():\n    "
FACTS = "\n@hookimpl\ndef quirks_facts(context):\n    "
#: Plugins that cannot be loaded: the words that the one row about each must hold, and the source.
BROKEN = {
    "import-markup": ("first [/red] [bold", "raise ValueError('first\\n[/red] [bold')"),
    "declare-exits": ("SystemExit", f"{DECLARE}sys.exit()"),
    "v1-runtime": ("taken by model-quirks", 'QUIRK = make("v1-runtime")'),
}
#: Plugins that load, and fail while a plan is made: the words of the warning or refusal, and the source.
FAILING = {
    "match-exits": (
        "SystemExit",
        "class Own(Match):\n    def trace(self, facts): sys.exit(0)\nQUIRK = make('match-exits', match=Own())",
    ),
    "value-raises": (
        "no value",
        "def f(context): raise OSError('no value')\nQUIRK = make('value-raises', adjustments=Default('engine.seed', f))",
    ),
    "facts-raise": ("OSError: no facts", f"{DECLARE}return [make('facts-raise')]{FACTS}raise OSError('no facts')"),
    "prints": (
        "",
        f"print('import')\n{DECLARE}print('declares')\n    return [make('prints')]{FACTS}print('x')\n    return {{}}",
    ),
}


def install(site: Path, distribution: str, entry_points: str, *, version: str = "1.0") -> None:
    """Writes the metadata of a distribution."""
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")


@pytest.fixture(scope="module")
def environment(installed: Callable[..., Environment], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with a distribution for each plugin, and the good one."""
    site = tmp_path_factory.mktemp("site")
    for name, (_, source) in {**BROKEN, **FAILING, "good": ("", GOOD)}.items():
        module = f"hostile_{name.replace('-', '_')}"
        point = f"{module}:QUIRK" if "QUIRK =" in source else module
        install(site, module, f"[model_quirks]\n{name} = {point}\n")
        (site / f"{module}.py").write_text(HEAD + source, encoding="utf-8")
    return installed().with_site(site)


@pytest.fixture(scope="module")
def plan(environment: Environment) -> Any:
    """The plan beside them; JSON, though a plugin prints wherever it can."""
    return environment.plan("llama")


def test_a_plugin_that_cannot_be_loaded_is_one_readable_row(environment: Environment) -> None:
    doctor = environment.quirks("doctor", "--json")

    rows = [row["message"] for row in doctor.json if " is broken: " in row["message"]]
    assert (doctor.code, len(rows)) == (3, len(BROKEN))
    for name, (words, _) in BROKEN.items():
        (row,) = [row for row in rows if row.startswith(f"plugin {name!r} of hostile_{name.replace('-', '_')} 1.0 (")]
        assert (words in row, "\n" in row) == (True, False)


def test_a_plugin_that_fails_later_is_named_in_the_plan(plan: Any) -> None:
    said = [*(note["text"] for note in plan["warnings"]), *(refusal["reason"] for refusal in plan["refusals"])]

    assert FAILING.keys() <= {verdict["id"] for verdict in plan["verdicts"]}
    assert [words for words, _ in FAILING.values() if not any(words in text for text in said)] == []


def test_the_rest_of_the_plan_is_as_it_is(plan: Any) -> None:
    assert plan["changes"]["engine.enforce_eager"] is True
    assert {quirk["id"] for refusal in plan["refusals"] for quirk in refusal["quirks"]} == {"value-raises"}


def test_every_command_ends_with_a_code_it_documents(environment: Environment) -> None:
    """On a terminal without Unicode, too."""
    model = ["--model", str(environment.model("llama"))]
    lines = (["show", "good"], ["show", "declare-exits"], ["lock", "--output", "never.lock"], ["plan", "--strict", *model],
             ["plan", *model], ["explain", "match-exits", *model], ["list", "--stage", "any"])  # fmt: skip

    codes = [environment.quirks(*line, PYTHONIOENCODING="ascii", PYTHONUTF8="0").code for line in lines]

    assert codes == [0, 3, 3, 3, 1, 0, 0]
