"""Recorded evidence is stale as soon as something that it depends on has changed, and not before."""

from __future__ import annotations

import ast
import sys
from datetime import date

import pytest

from quirks_core.plugins.registry import Registry
from worker.lab.kit import digest, evidence
from worker.lab.kit.digest import code_digest
from worker.lab.kit.evidence import stale
from worker.lab.kit.evidence_table import Proved

_QUIRK = '''
"""What goes wrong."""
from quirks_core import Default, Patch, Quirk, Severity, no, purpose, report, yes
from acme.helper import expected

QUIRK = Quirk(
    id="acme-limit",
    title="Something goes wrong",
    flag="timeout",
    match=purpose("serve"),
    adjustments=[
        Default("request.timeout_s", 5.0, reason="it is late"),
        Patch("fake_engine:step", wrapper="acme.patches:wrap", expects="0123456789ab"),
    ],
    severity=Severity.CRASH,
    references=report("https://example.org/1"),
    examples=[yes(purpose="serve"), no(purpose="eval")],
)
WORD = "time limit"

def unrelated():
    return 1

async def scenario(lab):
    """Runs."""
    return expected(lab, WORD)
'''
_HELPER = """
LIMIT = 5.0

def expected(lab, word):
    return lab, word, LIMIT
"""
_PATCHES = '''
"""Patches."""
import functools
from functools import partial

def wrap(original):
    """Wraps."""
    return functools.wraps(original)(partial(original, _twice(1)))

def _twice(value):
    return value + value
'''
_FILES = {"quirk": _QUIRK, "helper": _HELPER, "patches": _PATCHES}
_IN_ONE = _QUIRK.replace("acme.patches:wrap", "acme.quirk:wrap") + _PATCHES


@pytest.fixture
def package(site, install, forget_sources, monkeypatch):
    """Writes the modules of a distribution, and returns its one quirk."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a second is too coarse to tell two of our versions apart
    install("acme-quirks", {"acme-limit": "acme.quirk:QUIRK"})
    (site / "acme").mkdir()

    def write(**files):
        for name, text in {"__init__": "", **_FILES, **files}.items():
            (site / "acme" / f"{name}.py").write_text(text, encoding="utf-8")
        for name in ("acme", "acme.quirk", "acme.helper"):
            sys.modules.pop(name, None)
        forget_sources()
        return Registry.load().find("acme-limit").quirk

    return write


@pytest.fixture
def made(monkeypatch):
    """Records a proof of a quirk on this installation."""

    def made(quirk, **more):
        depends = evidence.dependencies(quirk)
        versions = {name: depends[name] for name in evidence.PACKAGES}
        row = Proved(
            platform="cpu", by="paired run", conclusion="NEEDED", date=date(2026, 11, 22), digest=depends["code"],
            **versions, **more,
        )  # fmt: skip
        monkeypatch.setattr("worker.lab.kit.evidence_table.proved", lambda _: (row,))

    return made


_SAME = {
    "docstring": ("quirk", "What goes wrong.", "What went wrong."),

    "what nobody names": ("quirk", "return 1", "return 2"),

    "annotation": ("quirk", "async def scenario(lab):", "async def scenario(lab: object) -> object:"),
    "layout and comments": ("quirk", "return expected(lab, WORD)", "return expected(lab,  WORD)  # as it should be"),

    "title": ("quirk", "Something goes wrong", "It goes wrong"),
    "reason": ("quirk", "it is late", "it takes long"),
    "references": ("quirk", "example.org/1", "example.org/2"),
    "examples": ("quirk", ', no(purpose="eval")', ""),
    "range": ("quirk", "    severity=", '    affected=Affected("vllm", fixed="0.9.2"),\n    severity='),
    "fingerprint": ("quirk", "0123456789ab", "ba9876543210"),
}  # fmt: skip
_OTHER = {
    "value": ("quirk", '"request.timeout_s", 5.0', '"request.timeout_s", 6.0'),
    "target": ("quirk", "fake_engine:step", "fake_engine:other"),
    "match": ("quirk", 'match=purpose("serve")', 'match=purpose("eval")'),
    "scenario": ("quirk", "return expected(lab, WORD)", "return expected(lab, WORD * 2)"),
    "constant of a scenario": ("quirk", '"time limit"', '"limit of time"'),
    "constant of a helper": ("helper", "LIMIT = 5.0", "LIMIT = 6.0"),
    "operator of a patch": ("patches", "value + value", "value * value"),
}


@pytest.mark.parametrize("what", [*_SAME, *_OTHER])
def test_a_proof_is_stale_once_what_a_run_does_changes(package, made, what):
    made(package())
    module, old, new = (_SAME | _OTHER)[what]
    assert old in _FILES[module]
    text = _FILES[module].replace(old, new).replace("import Default,", "import Affected, Default,")

    assert stale(package(**{module: text})) == ("code" if what in _OTHER else "")


def test_what_is_imported_under_another_name_leaves_a_proof(package, made):
    made(package())
    quirk = _QUIRK.replace("from acme.helper import expected", "import acme.helper as other")
    patches = _PATCHES.replace("import partial", "import partial as some").replace("(partial(", "(some(")

    assert stale(package(quirk=quirk.replace("return expected(", "return other.expected("), patches=patches)) == ""


def test_a_patch_may_move_into_the_file_of_its_quirk(package, made):
    made(package())

    assert stale(package(quirk=_IN_ONE)) == ""
    assert stale(package(quirk=_IN_ONE.replace("value + value", "value - value"))) == "code"


def test_another_meaning_of_the_kit_makes_paired_runs_stale(package, monkeypatch):
    quirk = package()
    before = code_digest(quirk), code_digest(Registry.load().find("ep-alone").quirk)

    monkeypatch.setattr(digest, "KIT", digest.KIT + 1)

    after = code_digest(quirk), code_digest(Registry.load().find("ep-alone").quirk)  # which has a probe alone
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


def test_a_field_that_a_later_python_has_changes_no_digest(monkeypatch):
    tree = ast.parse("def function():\n    return 1\n")
    before = ast.dump(digest._Essence("nowhere", tree).tree)

    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "later"))
    tree.body[0].later = []

    assert ast.dump(digest._Essence("nowhere", tree).tree) == before


@pytest.mark.parametrize(
    ("name", "found", "because"),
    [
        ("installed_versions", {**evidence.installed_versions(), "torch": "9.9"}, "torch"),
        ("installed_versions", {**evidence.installed_versions(), "vllm": "9.9"}, "never proved"),
        ("captures_graphs", True, "never proved"),
    ],
)
def test_another_engine_makes_a_proof_stale(package, made, monkeypatch, name, found, because):
    quirk = package()
    made(quirk, runner="v1")

    monkeypatch.setattr(evidence, name, lambda: found)

    assert stale(quirk) == because


def test_another_kind_of_cpu_makes_no_proof_stale(made, monkeypatch):
    quirk = Registry.load().find("cpu-amx-mla").quirk
    monkeypatch.setattr("quirks_core.facts.packages.cpu_flags", lambda: frozenset({"amx_tile", "amx_bf16"}))
    monkeypatch.setattr(evidence, "elsewhere", lambda _: "")
    made(quirk, cpu=evidence.dependencies(quirk).get("cpu", ""))

    monkeypatch.setattr("quirks_core.facts.packages.cpu_flags", lambda: frozenset({"avx2", "avx_vnni"}))

    assert evidence.dependencies(quirk)["cpu"] == "avx_vnni"
    assert stale(quirk) == ""
