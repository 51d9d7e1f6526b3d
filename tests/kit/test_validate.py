"""``quirks validate``: whatever a distribution's plugins do, it ends up as a finding, and never as a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from declarations import declared
from installations import lay
from patience import patience

from quirks_core.plugins.finder import PROJECT, Discovered
from quirks_core.plugins.isolated import look

Install = Callable[..., None]

#: Plugins that do not load, by the words that the finding must hold.
BROKEN = {
    "kit_broken_m0.py:1: RuntimeError: at import": "raise RuntimeError('at import')",
    "ends with exit code 7: last words": "import os; print('last words', file=__import__('sys').stderr); os._exit(7)",
    "a process that loads it dies of SIGSEGV": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "is neither a Quirk nor a plugin": "QUIRK = object()",
}
HOOK = "from quirks_core import hookimpl\n\n@hookimpl\ndef quirks_declare():\n    return [ONE]\n"
FACTS = f"{HOOK}\n@hookimpl\ndef quirks_facts(context):\n    "
#: Quirks, with the facts hook of their plugin, that would do nothing in any run, or harm; and the words of the only error.
USELESS = {
    "raises": ({}, "return {'n': context.nothing}", "quirks_facts of kit-useless:raises failed: kit_useless_raises.py:"),
    "list": ({}, "return [1]", "it must return JSON values by name, not [1]"),
    "misspelt": (
        {"match": "Fact('kit-useless.node').above(1)",
         "examples": "[yes(extra={'kit-useless.node': 2}), no(extra={'kit-useless.node': 1}), unknown()]"},
        "return {'nodes': 4}", "gives no fact 'kit-useless.node' in any example; did you mean 'kit-useless.nodes'?"),
}  # fmt: skip
RAISES = """
class Bad(Match):
    def trace(self, facts): raise RuntimeError('in trace')
"""


class Found(NamedTuple):
    """A finding."""

    level: str
    quirk: str
    message: str


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs good and bad distributions, all of them beside each other."""
    site = tmp_path_factory.mktemp("site")

    def install(name: str, /, points: dict[str, str] | None = None, **sources: str) -> None:
        """Installs modules, each with a plugin of the distribution's name, unless told otherwise."""
        lay(site, name, "1.2", points or {f"{name}/{key}": f"{name.replace('-', '_')}_{key}:QUIRK" for key in sources})
        for key, source in sources.items():
            (site / f"{name.replace('-', '_')}_{key}.py").write_text(source, encoding="utf-8")

    for heavy in ("torch", "ray"):
        (site / f"{heavy}.py").write_text("", encoding="utf-8")
    wide = {"supersedes": "'gemma4-layer-scalar'", "match": "model_type('example', 'gemma4', 'gemma4_text', 'gemma4_unified')"}
    install("kit-good", one=declared("kit-good/one", **wide, before="print('hello')"))
    install(
        "kit-broken", **{f"m{n}": source for n, source in enumerate(BROKEN.values())}, z=declared("kit-broken/z", examples="()")
    )
    install("kit-hooks", {"pack": "kit_hooks_pack"}, pack=declared("kit-hooks/one", name="ONE", examples="()") + HOOK)
    install(
        "kit-heavy",
        a=declared("kit-heavy/a", before="import torch"),
        b=declared("kit-heavy/b", before="import torch, ray"),
        c=declared("kit-heavy/c", before="import os\nos.environ['VLLM_KIT'] = '1'\nos.environ.pop('VLLM_KIT')"),
        d=declared("kit-heavy/d"),
    )
    install(
        "kit-useless", {name: f"kit_useless_{name}" for name in USELESS},
        **{name: declared(f"kit-useless/{name}", name="ONE", **changes) + FACTS + body
           for name, (changes, body, _) in USELESS.items()},
    )  # fmt: skip
    install(
        "kit-laws",
        raises=declared("kit-laws/raises", before=RAISES, match="Bad()"),
        one=declared("kit-laws/one", supersedes="'kit-nobody'"),
    )
    for name, other in (("kit-x", "kit-y"), ("kit-y", "kit-x")):
        points = {"same": "kit-same", "two": "kit-x/two", "one": f"{name}/one"}
        install(
            name, {point: f"{name.replace('-', '_')}_{key}:QUIRK" for key, point in points.items()},
            same=declared("kit-same"), two=declared("kit-x/two"), one=declared(f"{name}/one", supersedes=repr(f"{other}/one")),
        )  # fmt: skip
    return site


@pytest.fixture(scope="module")
def validated(distributions: Path, python: Callable[..., Any]) -> Any:
    """Checks all of them at once, as a shell would."""
    done = python("-m", "quirks_core.cli", "validate", "--json", PYTHONPATH=str(distributions))
    assert done.returncode == 3
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def findings(validated: Any) -> Callable[[str], list[Found]]:
    """The findings about a distribution."""
    rows = validated["findings"]
    return lambda name: [Found(row["level"], row["quirk"], row["message"]) for row in rows if row["distribution"] == name]


def test_only_third_parties_are_checked_by_default(validated: Any) -> None:
    names = ["kit-broken", "kit-good", "kit-heavy", "kit-hooks", "kit-laws", "kit-useless",
             "kit-x", "kit-y"]  # fmt: skip

    assert [row["name"] for row in validated["distributions"]] == names
    assert (validated["distributions"][1]["version"], validated["distributions"][1]["quirks"]) == ("1.2", ["kit-good/one"])
    assert [row for row in validated["findings"] if row["distribution"] == "kit-good"] == []  # nothing to mend


@pytest.mark.parametrize("number", range(len(BROKEN)), ids=list(BROKEN))
def test_a_broken_plugin_is_named_with_its_error(findings: Any, number: int) -> None:
    (found,) = [found for found in findings("kit-broken") if found.quirk == f"kit-broken/m{number}"]

    assert found.level == "broken"
    assert found.message.startswith(f"kit_broken_m{number}:QUIRK does not load: ")
    assert list(BROKEN)[number] in found.message


def test_side_effects_of_an_import_are_those_of_its_plugin(findings: Any) -> None:
    assert [(found.level, found.quirk, found.message.partition(":")[0]) for found in findings("kit-heavy")] == [
        ("error", "kit-heavy/a", "loading and judging it imports torch"),
        ("error", "kit-heavy/b", "loading and judging it imports ray, torch"),
        ("error", "kit-heavy/c", "loading and judging it changes VLLM_KIT"),
    ]


def test_a_match_that_raises_does_not_hide_the_other_laws(findings: Any) -> None:
    messages = "\n".join(found.message for found in findings("kit-laws"))

    for words in (
        "supersedes 'kit-nobody'",
        "is not data",
        "wanted an answer, got RuntimeError: in trace",
    ):
        assert words in messages


@pytest.mark.parametrize("name", USELESS)
def test_what_would_do_nothing_or_harm_in_every_run_is_an_error(findings: Any, name: str) -> None:
    wrong = [
        found.message for found in findings("kit-useless") if (found.quirk, found.level) == (f"kit-useless/{name}", "error")
    ]

    assert any(USELESS[name][2] in message for message in wrong), wrong
    assert len(wrong) == 1


def test_problems_between_distributions_are_reported_for_each(findings: Any) -> None:
    for name, other in (("kit-x", "kit-y"), ("kit-y", "kit-x")):
        messages = [found.message for found in findings(name)]
        for words in (
            f"_same:QUIRK does not load: quirk id 'kit-same' is taken by {other} 1.2 (",
            f"_two:QUIRK does not load: quirk id 'kit-x/two' is taken by {other} 1.2 (",
            "quirks supersede each other in a circle: kit-",
            f"safe from others as '{name}/kit-same'",
        ):
            assert len([message for message in messages if words in message]) == 1, messages


def test_the_exit_code_is_that_of_the_named_distribution(quirks: Callable[..., Any], install: Install) -> None:
    install("kit-good", {"kit-good/one": "kit_good:QUIRK"}, kit_good=declared("kit-good/one"))
    install("kit-bad", {"kit-bad/one": "kit_bad:QUIRK"}, kit_bad=declared("kit-bad/one", examples="()"))

    good, bad, none, unknown = (quirks("validate", name) for name in ("Kit.Good", "kit_bad", "pytest", "kit-god"))

    assert (good.code, bad.code, none.code, unknown.code) == (0, 1, 1, 2)
    assert "kit-good: 1 quirk, nothing to mend" in good.out
    assert "no example of a run that gets yes" in bad.out
    assert "kit-bad: 1 quirk, 3 to mend" in bad.out
    assert "add an entry point to the group 'model_quirks'" in none.out
    assert "no distribution 'kit-god' is installed; did you mean 'kit-good'?" in unknown.err


def test_a_plugin_that_hangs_does_not_hide_the_next_one(install: Install) -> None:
    waits = "import time\ndef value(context): time.sleep(600)"
    sources = {
        "kit_import": "import time; time.sleep(600)",
        "kit_law": declared("kit-law", before=waits, adjustments="Default('engine.dtype', value)"),
        "kit_good": declared("kit-good"),
    }
    names = [module.replace("_", "-") for module in sources]
    install("kit-slow", {name: f"{name.replace('-', '_')}:QUIRK" for name in names}, **sources)
    plugins = [
        Discovered(name, "kit-slow", "1.2", EntryPoint(name, f"{name.replace('-', '_')}:QUIRK", PROJECT)) for name in names
    ]

    at_import, in_law, good = look(plugins, limit_s=patience(6.0))

    assert "more than " in at_import.error
    assert "more than " in in_law.error
    assert [quirk.id for quirk in good.quirks] == ["kit-good"]
