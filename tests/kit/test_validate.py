"""``quirks validate``: whatever a distribution's plugins do, it ends up as a finding, and never as a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Install = Callable[..., None]
Declared = Callable[..., str]
Quirks = Callable[..., Any]


@pytest.fixture
def findings(quirks: Quirks) -> Callable[..., tuple[int, list[dict[str, str]]]]:
    """Runs the command with --json; returns the exit code and the findings."""

    def run(*arguments: str) -> tuple[int, list[dict[str, str]]]:
        outcome = quirks("validate", "--json", *arguments)
        assert "Traceback" not in outcome.err
        return outcome.code, outcome.json["findings"]

    return run


def test_a_good_distribution_has_nothing_to_mend(quirks: Quirks, install: Install, declared: Declared) -> None:
    install("kit-good", {"kit-good/one": "kit_good:QUIRK"}, kit_good=declared("kit-good/one"))

    outcome = quirks("validate", "--json", "kit-good")

    assert outcome.code == 0
    assert outcome.json == {
        "distributions": [{"name": "kit-good", "version": "1.2", "plugins": ["kit-good/one"], "quirks": ["kit-good/one"]}],
        "findings": [],
    }


def test_an_id_without_the_distributions_name_is_a_note(findings: Any, install: Install, declared: Declared) -> None:
    install("kit-good", {"kit-one": "kit_good:QUIRK"}, kit_good=declared("kit-one"))

    code, found = findings("kit-good")

    assert code == 0
    (finding,) = found
    assert (finding["level"], finding["quirk"]) == ("note", "kit-one")
    assert "'kit-good/kit-one'" in finding["message"]


def test_without_a_name_every_third_party_is_checked_and_the_built_in_quirks_are_not(
    quirks: Quirks, install: Install, declared: Declared
) -> None:
    install("kit-b", {"kit-b/one": "kit_b:QUIRK"}, kit_b=declared("kit-b/one"))
    install("kit-a", {"kit-a/one": "kit_a:QUIRK"}, kit_a=declared("kit-a/one"))

    outcome = quirks("validate", "--json")

    assert outcome.code == 0
    assert [row["name"] for row in outcome.json["distributions"]] == ["kit-a", "kit-b"]


def test_the_built_in_quirks_keep_every_law(findings: Any) -> None:
    assert findings("model-quirks") == (0, [])


@pytest.mark.parametrize("name", ["Kit.Good", "kit_good", "KIT-GOOD"])
def test_a_distribution_is_named_as_pip_takes_it(quirks: Quirks, install: Install, declared: Declared, name: str) -> None:
    install("kit-good", {"kit-good/one": "kit_good:QUIRK"}, kit_good=declared("kit-good/one"))

    assert quirks("validate", name).code == 0


def test_a_distribution_that_is_not_installed_is_a_usage_error_with_the_nearest_name(
    quirks: Quirks, install: Install, declared: Declared
) -> None:
    install("kit-good", {"kit-good/one": "kit_good:QUIRK"}, kit_good=declared("kit-good/one"))

    outcome = quirks("validate", "kit-god")

    assert outcome.code == 2
    assert "no distribution 'kit-god' is installed; did you mean 'kit-good'?" in outcome.err


def test_a_distribution_without_quirks_is_told_what_to_add(findings: Any) -> None:
    code, (finding,) = findings("pytest")

    assert code == 1
    assert "add an entry point to the group 'model_quirks'" in finding["message"]


BROKEN = [
    ("raise RuntimeError('at import')", "RuntimeError: at import"),
    ("import no_such_module", "No module named 'no_such_module'"),
    ("import sys; sys.exit('good bye')", "good bye"),
    ("import os; os._exit(0)", "a process that loads it ends with exit code 0"),
    ("import os; print('last words', file=__import__('sys').stderr); os._exit(7)", "ends with exit code 7: last words"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "a process that loads it dies of SIGSEGV"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute", "Mute"),
    ("QUIRK = object()", "is neither a Quirk nor a plugin"),
    ("NOTHING = 7", "has no attribute 'QUIRK'"),
    ("this is no python", "SyntaxError"),
    ("from quirks_core import Quirk\nQUIRK = Quirk(id='Ü', title='')", "TypeError"),
]


@pytest.mark.parametrize(("source", "words"), BROKEN, ids=[words[:30] for _, words in BROKEN])
def test_a_broken_plugin_is_named_with_its_error_and_the_others_are_checked(
    findings: Any, install: Install, declared: Declared, source: str, words: str
) -> None:
    points = {"kit-bad/a": "kit_one:QUIRK", "kit-bad/b": "kit_bad:QUIRK", "kit-bad/c": "kit_two:QUIRK"}
    modules = {"kit_one": declared("kit-bad/a", since="''"), "kit_bad": source, "kit_two": declared("kit-bad/c", since="''")}
    install("kit-bad", points, **modules)

    code, found = findings("kit-bad")

    assert code == 3
    broken = [finding for finding in found if finding["level"] == "broken"]
    assert [finding["quirk"] for finding in broken] == ["kit-bad/b"]
    assert broken[0]["message"].startswith("kit_bad:QUIRK does not load: ")
    assert words in broken[0]["message"]
    assert [finding["quirk"] for finding in found if "since is empty" in finding["message"]] == ["kit-bad/a", "kit-bad/c"]


@pytest.mark.parametrize("where", ["import", "example"])
def test_a_plugin_that_hangs_is_given_up(
    findings: Any, install: Install, declared: Declared, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("MODEL_QUIRKS_TIME_LIMIT_S", "1")
    source = declared(
        "kit-slow/one", before="import time\ndef value(context): time.sleep(600)", adjustments="Default('engine.dtype', value)"
    )
    install(
        "kit-slow",
        {"kit-slow/one": "kit_slow:QUIRK", "kit-slow/two": "kit_two:QUIRK"},
        kit_slow="import time; time.sleep(600)" if where == "import" else source,
        kit_two=declared("kit-slow/two"),
    )

    code, (finding,) = findings("kit-slow")

    assert code == 3
    assert finding["quirk"] == "kit-slow/one"
    assert "did not return within 1 s" in finding["message"]


def test_an_entry_point_must_bear_the_quirks_id(findings: Any, install: Install, declared: Declared) -> None:
    install("kit-bad", {"kit-other": "kit_bad:QUIRK"}, kit_bad=declared("kit-bad/one"))

    code, (finding,) = findings("kit-bad")

    assert code == 3
    assert "the entry point is named 'kit-other' but the quirk's id is 'kit-bad/one'" in finding["message"]


@pytest.mark.parametrize("value", ["", ":", "kit bad:QUIRK", "kit_bad:QUIRK[x]!"])
def test_an_entry_point_that_names_nothing_is_broken(findings: Any, install: Install, value: str) -> None:
    install("kit-bad", {"kit-bad/one": value})

    code, found = findings("kit-bad")

    assert code == 3
    assert found[0]["level"] == "broken"


def test_what_a_plugin_prints_stays_out_of_the_report(findings: Any, install: Install, declared: Declared) -> None:
    install("kit-loud", {"kit-loud/one": "kit_loud:QUIRK"}, kit_loud=declared("kit-loud/one", before="print('hello')"))

    assert findings("kit-loud") == (0, [])


def test_heavy_imports_are_found_and_pinned_on_the_right_plugin(
    findings: Any, install: Install, declared: Declared, site: Path
) -> None:
    for heavy in ("torch", "ray"):
        (site / f"{heavy}.py").write_text("", encoding="utf-8")
    names = ("a", "b", "c")
    lines = {"a": "import torch", "b": "import torch, ray", "c": ""}
    install(
        "kit-heavy",
        {f"kit-heavy/{name}": f"kit_heavy_{name}:QUIRK" for name in names},
        **{f"kit_heavy_{name}": declared(f"kit-heavy/{name}", before=lines[name]) for name in names},
    )

    code, found = findings("kit-heavy")

    assert code == 1
    assert [(finding["quirk"], finding["message"].partition(":")[0]) for finding in found] == [
        ("kit-heavy/a", "importing and judging it imports torch"),
        ("kit-heavy/b", "importing and judging it imports ray, torch"),
    ]


def test_a_changed_environment_is_found(findings: Any, install: Install, declared: Declared) -> None:
    before = "import os\nos.environ['VLLM_KIT'] = '1'\nos.environ.pop('VLLM_KIT')"
    install("kit-bad", {"kit-bad/one": "kit_bad:QUIRK"}, kit_bad=declared("kit-bad/one", before=before))

    code, (finding,) = findings("kit-bad")

    assert code == 1
    assert "importing it changes VLLM_KIT" in finding["message"]


def test_every_law_of_the_contract_is_held(findings: Any, install: Install, declared: Declared) -> None:
    source = declared(
        "kit-bad/one",
        before="from quirks_core import Fact\n__doc__ = 'One line.'",
        since="''",
        examples="()",
        match="Fact('model.is_mo').is_true()",
        affected="Affected('vllm', fixed='0.8')",
        supersedes="('kit-nobody',)",
        adjustments="(Refuse('', 'x'), Default('engine.dtype', lambda context: 'auto'), "
        "Patch('vllm.envs:no_such', replacement='kit_bad:DECLARATION', expects=('0' * 64,), reason='x'))",
    )
    install("kit-bad", {"kit-bad/one": "kit_bad:QUIRK"}, kit_bad=source)

    code, found = findings("kit-bad")

    assert code == 1
    messages = "\n".join(finding["message"] for finding in found)
    for words in ("since is empty", "docstring", "no evidence", "gets yes", "'model.is_mo'", "Refuse has no reason",
                  "come back from JSON", "delete me", "supersedes 'kit-nobody'"):  # fmt: skip
        assert words in messages


def test_a_match_that_raises_is_a_problem_of_the_quirk(findings: Any, install: Install, declared: Declared) -> None:
    before = (
        "from quirks_core.match import Match\n"
        "class Bad(Match):\n"
        "    def trace(self, facts): raise RuntimeError('in trace')\n"
        "    def facts(self): raise RuntimeError('in facts')\n"
    )
    install("kit-bad", {"kit-bad/one": "kit_bad:QUIRK"}, kit_bad=declared("kit-bad/one", before=before, match="Bad()"))

    code, found = findings("kit-bad")

    assert code == 1
    assert any("its facts cannot be checked: RuntimeError: in facts" in finding["message"] for finding in found)


def test_an_id_that_others_declare_is_named_with_all_of_them(findings: Any, install: Install, declared: Declared) -> None:
    install("kit-a", {"kit-one": "kit_a:QUIRK"}, kit_a=declared("kit-one"))
    install("kit-b", {"kit-one": "kit_b:QUIRK"}, kit_b=declared("kit-one"))

    code, found = findings("kit-b")

    assert code == 1
    (finding,) = [finding for finding in found if finding["level"] == "error"]
    assert "kit-a 1.2" in finding["message"]
    assert "kit-b 1.2" in finding["message"]
    assert "rename it, for example kit-b/kit-one" in finding["message"]


def test_quirks_that_supersede_each_other_are_named(findings: Any, install: Install, declared: Declared) -> None:
    install("kit-a", {"kit-a/x": "kit_a:QUIRK"}, kit_a=declared("kit-a/x", supersedes="('kit-b/y',)"))
    install("kit-b", {"kit-b/y": "kit_b:QUIRK"}, kit_b=declared("kit-b/y", supersedes="('kit-a/x',)"))

    code, (finding,) = findings("kit-a")

    assert code == 1
    assert "in a circle: kit-" in finding["message"]


def test_a_superseded_quirk_may_be_built_in(findings: Any, install: Install, declared: Declared) -> None:
    install("kit-a", {"kit-a/x": "kit_a:QUIRK"}, kit_a=declared("kit-a/x", supersedes="('gemma4-layer-scalar',)"))

    assert findings("kit-a") == (0, [])


def test_a_plugin_with_a_hook_has_each_of_its_quirks_checked(findings: Any, install: Install, declared: Declared) -> None:
    hook = "from quirks_core import hookimpl\n\n@hookimpl\ndef quirks_declare():\n    return [ONE]\n"
    install("kit-pack", {"pack": "kit_pack"}, kit_pack=declared("kit-pack/one", name="ONE", since="''") + hook)

    code, (finding,) = findings("kit-pack")

    assert code == 1
    assert finding["quirk"] == "kit-pack/one"


def test_people_see_a_table_and_a_line_per_distribution(quirks: Quirks, install: Install, declared: Declared) -> None:
    install("kit-bad", {"kit-bad/one": "kit_bad:QUIRK"}, kit_bad=declared("kit-bad/one", since="''"))

    outcome = quirks("validate")

    assert outcome.code == 1
    assert "since is empty" in outcome.out
    assert "kit-bad: 1 quirk, 1 to mend" in outcome.out


def test_nothing_installed_is_nothing_wrong(quirks: Quirks) -> None:
    outcome = quirks("validate")

    assert outcome.code == 0
    assert "no third party's quirks are installed" in outcome.out
