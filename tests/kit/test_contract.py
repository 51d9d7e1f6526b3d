"""`QuirkContract`: each of its laws is seen to hold for a good quirk and to fail, with what to do, for a bad one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from declarations import declared

from quirks_core.plugins import validate

#: Every test of the contract, as pytest calls it, by its law.
LAWS = {
    **{law.__name__: f"test_it_keeps_the_law_of[{law.__name__}]" for law in validate.LAWS},
    "supersedes": "test_what_it_supersedes_exists",
    "pure": "test_importing_and_judging_it_is_pure",
    "same_plan": "test_every_process_makes_the_same_plan",
    "undoing": "test_undoing_it_restores_everything",
}
ENGINE = {
    "ray.py": "",
    "kit_engine.py": "class Engine:\n    def run(self):\n        return 'original'\n",
    "kit_engine_patch.py": """
        import os
        def wrap(original): return original
        def leak(original):
            os.environ["VLLM_LEFT"] = "1"
            return original
        """,
}
RUN = "from quirks_core.source.vllm_source import INSTALLED\nRUN = INSTALLED.fingerprint('kit_engine:Engine.run')"
PATCH = "Patch('kit_engine:Engine.run', wrapper='kit_engine_patch:wrap', expects=RUN, reason='nothing else helps')"
REST = f"{RUN}\nREST = [no('other'), unknown()]"
EAGER, ADVICE = "Default('engine.enforce_eager', True)", "Advise('it is slow')"
REFUSAL = "Refuse('it cannot work', 'set engine.seed')"
DRIFTED = PATCH.replace("RUN", "'0' * 12")
ELSEWHERE = DRIFTED.replace("kit_engine:", "no_such_engine:")

#: For each bad quirk: the law that it fails, what makes it bad, and what the failure says.
BAD: list[tuple[str, dict[str, str], str]] = [
    ("metadata", {"references": "report('http://example.org')"}, "reference 'http://example.org' is no https:// address"),
    ("metadata", {"before": "__doc__ = 'One line.'"}, "say what happens and when it can go"),
    ("metadata", {"before": "__doc__ = 'One.\\n\\nMore.'"}, "it has no evidence: write an 'async def scenario"),
    ("metadata", {"id": "'others/one'"}, "its id begins with 'others', but it belongs to 'acme'"),
    ("kinds", {"before": REST, "adjustments": PATCH, "kind": "Kind.RULE"}, "a rule never patches .kit_engine:Engine.run"),
    ("kinds", {"adjustments": "Require('engine.seed', 1)", "kind": "Kind.FEATURE"},
     "a feature never requires a value .engine.seed"),
    ("examples", {"examples": "()"}, "no example of a run that gets yes: add yes"),
    ("examples", {"examples": "[yes('other'), *DECLARATION['examples']]"},
     "example 1 must get yes and gets no: model.model_type: wanted example, got other; mend the example or the match"),
    *(
        ("examples", {"before": REST, "adjustments": adjustment, "examples": f"[yes('example', {outcome}), *REST]"},
         f"example 1 {words}; mend the example or the adjustments")
        for adjustment, outcome, words in (
            (EAGER, "gives={'engine.enforce_eager': False}", "must give .*: False} and gives .*: True}"),
            (ADVICE, "gives={'engine.seed': 1}, advises='slow'", "must give {'engine.seed': 1} and gives none"),
            (EAGER, "gives={'engine.enforce_eager': True}, advises='slow'", "must advise 'slow' and gets nothing"),
            (REFUSAL, "refuses=['cannot', 'engine.sed']", "must refuse 'engine.sed' and gets .* engine.seed"),
            (PATCH, "patches=['Engine.run', 'Engine.end']", "must patch Engine.run, Engine.end and patches Engine.run"),
        )
    ),
    ("facts", {"match": "Fact('model.is_mo').is_true()"}, "no run has a fact 'model.is_mo'; did you mean 'model.is_moe'?"),
    ("facts", {"adjustments": "Default('engine.enforce_eager', True, when=Fact('purpos').is_set())"},
     "no run has a fact 'purpos'; did you mean 'purpose'?"),
    ("facts", {"match": "Fact('acme.nodes').above(1)"}, "no run has a fact 'acme.nodes'; acme is not installed"),
    ("slots", {"adjustments": "Require('engine.max_num_seq', 8)"}, "did you mean 'max_num_seqs'?"),
    ("slots", {"before": "def value(context): return 'yes'", "adjustments": "Default('engine.enforce_eager', value)"},
     "example 1: what it asks for cannot be used: .* takes true or false, not 'yes'"),
    ("slots", {"adjustments": "(Require('engine.load_format', 'auto'), Require('engine.load_format', 'dummy'))"},
     "example 1: what it asks for cannot be used: "),
    ("reasons", {"adjustments": "Refuse(' ', 'do something else')"}, "a Refuse has no reason: say why"),
    ("reasons", {"before": RUN, "adjustments": PATCH.replace("nothing else helps", "")},
     "the patch of kit_engine:Engine.run does not say why"),
    ("supersedes", {"supersedes": "'gemma4-layer-scaler'"},
     "it supersedes 'gemma4-layer-scaler', which does not exist; did you mean 'gemma4-layer-scalar'?"),
    ("data", {"before": "class Own(Match):\n    def trace(self, facts): return model_type('example').trace(facts)",
                    "match": "Own()"}, "it cannot be written as JSON: .*Own.* is not data"),
    ("pure", {"before": "import ray"}, "loading and judging acme/bad imports ray: import it inside the function"),
    ("pure", {"before": "import os\nos.environ['VLLM_KIT'] = '1'"}, "loading and judging acme/bad changes VLLM_KIT"),
    ("pure", {"before": "import sys\nif 'pytest' not in sys.modules: sys.exit('no pytest')"},
     "acme/bad cannot be loaded in a process of its own, as every engine process must: .*no pytest"),
    ("same_plan", {"before": "import os\nNOW = str(os.getpid())", "adjustments": "Default('engine.load_format', NOW)"},
     "the declaration of acme/bad differs from process to process: sort what comes from a set"),
    ("same_plan", {"before": "import os\ndef value(context): return str(os.getpid())",
                   "adjustments": "Default('engine.load_format', value)"}, "the plan for example 1 differs from process"),
    ("patches", {"adjustments": DRIFTED},
     "kit_engine:Engine.run is not the source .*\n.*'quirks fingerprint kit_engine:Engine.run' prints"),
    ("patches", {"before": RUN, "adjustments": PATCH.replace("patch:wrap", "patch:wraps")},
     "comes from kit_engine_patch:wraps: kit_engine_patch has no wraps"),
    ("undoing", {"adjustments": DRIFTED}, "example 1: acme/bad cannot be put into force: "),
    ("undoing", {"before": RUN, "adjustments": PATCH.replace("wrap'", "leak'")},
     "undoing the quirk leaves environment variable VLLM_LEFT changed"),
    ("expiry", {"affected": "Affected('vllm', fixed='0.8.5')"},
     "delete me: vllm is fixed in 0.8.5, and nothing below 0.9.0 is supported"),
]  # fmt: skip
#: Quirks that a law has nothing to say of here, and why.
SKIPPED: list[tuple[str, dict[str, str], str]] = [
    ("undoing", {"adjustments": ELSEWHERE}, "no_such_engine is not installed"),
    ("patches", {"adjustments": ELSEWHERE}, "no_such_engine is not installed"),
    ("undoing", {"before": RUN, "adjustments": PATCH, "examples": "yes('example', platform='rocm')"},
     "example 1: it is a run on rocm, and this is "),
]  # fmt: skip
ROWS = [*BAD, *SKIPPED]
TEST = """
from quirks_core.testing.contract import QuirkContract
from {module} import {name}

class TestIt(QuirkContract):
    {attribute} = {name}
    distribution = 'acme'
"""


@pytest.fixture(scope="module")
def results(tested: Callable[..., Any]) -> Any:
    """One run of pytest in which every quirk is held against its law, and a good one against all."""
    outcome = "gives={'engine.enforce_eager': True}, advises='slow', patches='Engine.run'"
    refused = REFUSAL.replace(")", ", when=setting('engine.seed').is_set())")
    good = declared(
        "acme/good",
        before=REST,
        adjustments=f"({EAGER}, {ADVICE}, {refused}, {PATCH})",
        examples=f"[yes('example', {outcome}, defaults={{'engine.enforce_eager': False}}), "
        f"yes('example', {{'engine.seed': 1}}, {outcome}, refuses=['cannot', 'engine.seed']), *REST]",
    )
    files = {**ENGINE, "good.py": good}
    tests = ["test_good.py"]
    for number, (law, changes, _) in enumerate(ROWS):
        files[f"quirk_{number}.py"] = declared("acme/bad", **changes)
        files[f"test_{number}.py"] = TEST.format(module=f"quirk_{number}", name="QUIRK", attribute="quirk")
        tests.append(f"test_{number}.py::TestIt::{LAWS[law]}")
    files["test_good.py"] = TEST.format(module="good", name="QUIRK", attribute="quirk")
    files["test_none.py"] = TEST.format(module="good", name="QUIRK", attribute="quirks")
    files["test_hidden.py"] = TEST.format(module="good", name="DECLARATION", attribute="declaration") + (
        "    from quirks_core import Quirk\n    quirk = Quirk(**declaration)\n"
    )
    return tested(files, *tests, f"test_none.py::TestIt::{LAWS['metadata']}", f"test_hidden.py::TestIt::{LAWS['pure']}")


def test_a_good_quirk_keeps_every_law(results: Any) -> None:
    found = {name: outcome for name, outcome in results.outcomes.items() if name.startswith("test_good.py")}

    assert found == {f"test_good.py::TestIt::{test}": "passed" for test in LAWS.values()}


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[f"{law}-{number}" for number, (law, *_) in enumerate(ROWS)])
def test_a_bad_quirk_fails_its_law_with_what_to_do(results: Any, number: int) -> None:
    """A patch that cannot be tried here is skipped."""
    law, _, words = ROWS[number]
    test = f"test_{number}.py::TestIt::{LAWS[law]}"

    assert results.outcomes[test] in (("failed", "error") if number < len(BAD) else ("skipped",))
    assert re.search(words, results.texts[test]), results.texts[test]
    assert "Traceback" not in results.texts[test]


def test_a_class_without_a_quirk_says_so(results: Any) -> None:
    """So does one with a quirk that no entry point could name."""
    none, hidden = (
        results.texts[f"test_{name}.py::TestIt::{LAWS[law]}"] for name, law in (("none", "metadata"), ("hidden", "pure"))
    )

    assert "TestIt: set the quirk in the class: quirk = QUIRK" in none
    assert "is no global of the module that declares it" in hidden
