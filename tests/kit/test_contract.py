"""`QuirkContract`: each of its laws is seen to hold for a good quirk and to fail, with what to do, for a bad one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quirks_core import sources
from quirks_core.fingerprints import fingerprint

pytest_plugins = ("pytester",)

#: Every law of the contract, by a part of its name that no other has.
LAWS = (
    "metadata", "every_answer", "every_fact", "every_value", "say_why", "supersedes", "json", "pure", "same_plan", "undoing",
    "fit_the_installed", "expired",
)  # fmt: skip
ENGINE = "class Engine:\n    def run(self):\n        return 'original'\n"
PATCH = "Patch('kit_engine:Engine.run', wrapper='kit_engine_patch:wrap', expects=('{}',){})"

Hold = Callable[..., pytest.RunResult]


@pytest.fixture
def hold(pytester: pytest.Pytester, declared: Callable[..., str]) -> Iterator[Hold]:
    """Holds a quirk, given by changes to a good one, against one law or all of them."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.syspathinsert()

    def hold(law: str = "", *, before: str = "", distribution: str = "acme", **changes: str) -> pytest.RunResult:
        source = declared("acme/example", before=before, **changes)
        contract = f"\nclass TestIt(QuirkContract):\n    quirk = QUIRK\n    distribution = {distribution!r}\n"
        pytester.makepyfile(
            acme_example=source,
            test_it="from quirks_core.testing.contract import QuirkContract\nfrom acme_example import QUIRK\n" + contract,
        )
        plugins = ("hypothesispytest", "anyio", "cacheprovider")
        return pytester.runpytest_inprocess(*(word for name in plugins for word in ("-p", f"no:{name}")), "-rA", "-k", law)

    yield hold
    sources.module_source.cache_clear()
    sources._parsed.cache_clear()


@pytest.fixture
def engine(pytester: pytest.Pytester) -> str:
    """A fake engine and a wrapper for its method; returns the fingerprint of that."""
    Path(pytester.path, "ray.py").write_text("", encoding="utf-8")  # the real ones cannot be imported twice in one process
    Path(pytester.path, "kit_engine.py").write_text(ENGINE, encoding="utf-8")
    Path(pytester.path, "kit_engine_patch.py").write_text("def wrap(original):\n    return original\n", encoding="utf-8")
    pytester.syspathinsert()
    sources.module_source.cache_clear()
    sources._parsed.cache_clear()
    return fingerprint("kit_engine:Engine.run")


def test_a_good_quirk_keeps_every_law(hold: Hold, engine: str) -> None:
    patch = PATCH.format(engine, ", reason='nothing else helps'")

    result = hold(adjustments=f"(Default('engine.enforce_eager', True), {patch})")

    result.assert_outcomes(passed=len(LAWS))


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_a_name_of_its_own(hold: Hold, law: str) -> None:
    result = hold(law)

    result.assert_outcomes(passed=1, deselected=len(LAWS) - 1)


BAD = [
    ("metadata", {"since": "''"}, "since is empty: name the release that introduces the quirk"),
    ("metadata", {"since": "'soon'"}, "since='soon' is not a version"),
    ("metadata", {"references": "report('http://example.org')"}, "reference 'http://example.org' is no https:// address"),
    ("metadata", {"before": "__doc__ = 'One line.'"}, "say what happens, what the quirk changes and when it can go"),
    ("metadata", {"before": "__doc__ = 'One.\\n\\nMore.'"}, "it has no evidence: give a probe or a PairedRun"),
    ("metadata", {"distribution": "others"}, "its id begins with 'acme', but it belongs to 'others'"),
    ("every_answer", {"examples": "()"}, "no example of a run that gets yes: add Example(answer=Answer.YES"),
    ("every_answer", {"examples": "DECLARATION['examples'][:2]"}, "no example of a run that gets unknown"),
    (
        "every_answer",
        {"examples": "(Example(answer=Answer.YES, config={'model_type': 'other'}), *DECLARATION['examples'])"},
        "example 1 must get yes and gets no: model.model_type: wanted example, got other; mend the example or the match",
    ),
    ("every_fact", {"before": "from quirks_core import Fact", "match": "Fact('model.is_mo').is_true()"},
     "no run has a fact 'model.is_mo'; did you mean 'model.is_moe'?"),
    ("every_fact", {"before": "from quirks_core import Fact",
                    "adjustments": "Default('engine.enforce_eager', True, when=Fact('purpos').is_set())"},
     "no run has a fact 'purpos'; did you mean 'purpose'?"),
    ("every_fact", {"before": "from quirks_core import environment", "match": "environment('HOME').is_set()"},
     "env.HOME is never known: only NCCL_*, NRL_* and VLLM_*"),
    ("every_value", {"before": "def value(context): return 'yes'", "adjustments": "Default('engine.enforce_eager', value)"},
     "example 1: what it asks for cannot be used: * takes a value of type bool, not 'yes'"),
    ("every_value", {"before": "def value(context): return context.nothing",
                     "adjustments": "Default('engine.enforce_eager', value)"},
     "example 1: what it asks for cannot be used: *AttributeError*"),
    ("every_value", {"adjustments": "(Require('engine.load_format', 'auto'), Require('engine.load_format', 'dummy'))"},
     "example 1: what it asks for cannot be used: *"),
    ("say_why", {"adjustments": "Refuse(' ', 'do something else')"}, "a Refuse has no reason: say why"),
    ("say_why", {"adjustments": "Refuse('it cannot work', '')"}, "a Refuse has no remedy: say what to do instead"),
    ("say_why", {"adjustments": PATCH.format("0" * 64, "")}, "the patch of kit_engine:Engine.run does not say why"),
    ("supersedes", {"supersedes": "('gemma4-layer-scaler',)"},
     "it supersedes 'gemma4-layer-scaler', which does not exist; did you mean 'gemma4-layer-scalar'?"),
    ("json", {"adjustments": "Default('engine.enforce_eager', lambda context: True)"},
     "it does not come back from JSON: * a value may be data or a function of a module, no lambda"),
    ("pure", {"before": "import ray"}, "importing and judging acme/example imports ray: import it inside the function"),
    ("pure", {"before": "import os\nos.environ['VLLM_KIT'] = '1'"}, "importing acme/example changes VLLM_KIT"),
    ("pure", {"before": "import sys\nif 'pytest' not in sys.modules: sys.exit('no pytest')"},
     "acme/example cannot be loaded in a process of its own, as every engine process must: *no pytest"),
    ("same_plan", {"before": "import os\nNOW = str(os.getpid())", "adjustments": "Default('engine.load_format', NOW)"},
     "the declaration of acme/example differs from process to process: sort what comes from a set"),
    ("same_plan", {"before": "def value(context): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})[0]",
                   "adjustments": "Default('engine.load_format', value)"},
     "the plan for example 1 differs from process to process: sort what comes from a set"),
    ("fit_the_installed", {"adjustments": PATCH.format("0" * 64, ", reason='why'")},
     "kit_engine:Engine.run has drifted from the source * 'quirks fingerprint kit_engine:Engine.run' prints"),
    ("fit_the_installed", {"adjustments": PATCH.format("0" * 64, ", reason='why'").replace("_patch:", "_patches:")},
     "*comes from kit_engine_patches:wrap, and there is no such module or class"),
    ("undoing", {"adjustments": PATCH.format("0" * 64, ", reason='why'")},
     "example 1: acme/example cannot be put into force: kit_engine:Engine.run has changed"),
    ("expired", {"affected": "Affected('vllm', fixed='0.8.5')"},
     "delete me: vllm is fixed in 0.8.5, and nothing below 0.9.0 is supported"),
]  # fmt: skip


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("law", "changes", "words"), BAD, ids=[f"{law}-{number}" for number, (law, *_) in enumerate(BAD)])
def test_a_bad_quirk_fails_its_law_with_what_to_do(hold: Hold, law: str, changes: dict[str, str], words: str) -> None:
    result = hold(law, **changes)

    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 1
    assert "passed" not in outcomes
    result.stdout.fnmatch_lines([f"*{words}*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_undoing_must_restore_what_a_wrapper_breaks(hold: Hold, engine: str, pytester: pytest.Pytester) -> None:
    leaky = "import os\n\ndef wrap(original):\n    os.environ['VLLM_LEFT'] = '1'\n    return original\n"
    Path(pytester.path, "kit_engine_patch.py").write_text(leaky, encoding="utf-8")

    result = hold("undoing", adjustments=PATCH.format(engine, ", reason='why'"))

    result.assert_outcomes(failed=1, deselected=len(LAWS) - 1)
    result.stdout.fnmatch_lines(["*undoing the quirk leaves environment variable VLLM_LEFT changed*"])


@pytest.mark.usefixtures("engine")
def test_a_patch_of_a_package_that_is_not_installed_is_skipped_with_the_reason(hold: Hold) -> None:
    patch = PATCH.format("0" * 64, ", reason='why'").replace("kit_engine:", "no_such_engine:")

    result = hold("undoing or fit_the_installed", adjustments=patch)

    result.assert_outcomes(passed=0, skipped=2, deselected=len(LAWS) - 2)
    result.stdout.fnmatch_lines(["*no_such_engine is not installed*"])


def test_a_patch_for_another_platform_is_skipped_with_the_reason(hold: Hold, engine: str) -> None:
    result = hold(
        "undoing",
        adjustments=PATCH.format(engine, ", reason='why'"),
        examples="(Example(answer=Answer.YES, config={'model_type': 'example'}, platform='rocm'),)",
    )

    result.assert_outcomes(skipped=1, deselected=len(LAWS) - 1)
    result.stdout.fnmatch_lines(["*example 1: it is a run on rocm, and this is *"])


def test_a_class_without_a_quirk_says_what_to_write(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile("from quirks_core.testing.contract import QuirkContract\n\nclass TestIt(QuirkContract):\n    pass\n")

    result = pytester.runpytest_inprocess("-p", "no:hypothesispytest", "-p", "no:anyio", "-k", "metadata")

    result.assert_outcomes(failed=1, deselected=len(LAWS) - 1)
    result.stdout.fnmatch_lines(["*TestIt: set the quirk in the class: quirk = QUIRK*"])


def test_a_quirk_that_no_entry_point_could_name_says_so(hold: Hold, pytester: pytest.Pytester) -> None:
    hold("nothing")
    pytester.makepyfile(
        test_it="from quirks_core.testing.contract import QuirkContract\nfrom quirks_core import Quirk\n"
        "from acme_example import DECLARATION\n\nclass TestIt(QuirkContract):\n    quirk = Quirk(**DECLARATION)\n"
    )

    result = pytester.runpytest_inprocess("-p", "no:hypothesispytest", "-p", "no:anyio", "-k", "pure")

    result.assert_outcomes(errors=1, deselected=len(LAWS) - 1)
    result.stdout.fnmatch_lines(["*is no global of the module that declares it*"])
