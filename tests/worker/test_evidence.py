"""Recorded evidence is stale as soon as something that it depends on has changed, and not before."""

from __future__ import annotations

import ast
import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from quirks_core import Affected, report
from quirks_core.plugins.registry import Registry
from quirks_core.source.vllm_source import VllmSource
from worker.lab.kit import evidence
from worker.lab.kit.evidence import stale
from worker.lab.kit.proof import Proof

_QUIRK = '''
"""What goes wrong."""
from quirks_core import Default, Quirk, Severity, no, purpose, report, yes
from acme.helper import expected

QUIRK = Quirk(
    id="acme-limit",
    title="Something goes wrong",
    flag="timeout",
    match=purpose("serve"),
    adjustments=Default("request.timeout_s", 5.0),
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
OTHER = 1

def expected(lab, word):
    return lab, word, LIMIT
"""


@pytest.fixture
def package(site, install, monkeypatch):
    """Writes the modules of a distribution, and returns its one quirk."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a second is too coarse to tell two of our versions apart
    install("acme-quirks", {"acme-limit": "acme.quirk:QUIRK"})
    (site / "acme").mkdir()

    def write(quirk=_QUIRK, helper=_HELPER):
        for name, text in (("__init__", ""), ("quirk", quirk), ("helper", helper)):
            (site / "acme" / f"{name}.py").write_text(text, encoding="utf-8")
        for name in ("acme", "acme.quirk", "acme.helper"):
            sys.modules.pop(name, None)
        for cached in (VllmSource.attribute_source, VllmSource.module_source, VllmSource.parsed):
            cached.cache_clear()
        return Registry.load().find("acme-limit")

    return write


def _proof(item):
    return Proof(
        id=item.quirk.id, title=item.quirk.title, distribution=item.distribution, version=item.version, conclusion="NEEDED",
        reason="it is", date="2026-11-22", depends=evidence.dependencies(item),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "old", "new", "what"),
    [
        ("quirk", "What goes wrong.", "What went wrong.", ""),
        ("quirk", "Runs.", "Walks.", ""),
        ("quirk", "return 1", "return 2", ""),
        ("helper", "OTHER = 1", "OTHER = 2", ""),
        ("quirk", "return expected(lab, WORD)", "return expected(lab,  WORD)  # as it should be", ""),
        ("quirk", '"request.timeout_s", 5.0', '"request.timeout_s", 6.0', "declaration"),
        ("quirk", "return expected(lab, WORD)", "return expected(lab, WORD * 2)", "scenario"),
        ("quirk", '"time limit"', '"limit of time"', "scenario"),
        ("helper", "LIMIT = 5.0", "LIMIT = 6.0", "scenario"),
    ],
)
def test_only_what_a_proof_depends_on_makes_it_stale(package, module, old, new, what):
    before = {"quirk": _QUIRK, "helper": _HELPER}
    proof = _proof(package(**before))
    assert old in before[module]

    assert stale(package(**{module: before[module].replace(old, new)}), proof) == what


def test_neither_what_a_run_records_nor_the_device_makes_a_proof_stale(package, monkeypatch):
    before = package()
    proof = _proof(before)
    scenario = Path(evidence.__file__).with_name("scenario.py").read_text(encoding="utf-8")
    without = scenario.replace('result["runner"] =', 'result["other"] =').replace("    set_mode()\n", "")
    trees = [ast.parse(text) for text in (scenario, without)]
    for tree in trees:
        evidence._leave_out_records(tree)

    monkeypatch.setattr(evidence, "device", lambda: "another")

    assert without != scenario
    assert evidence.digest_of([trees[0]]) == evidence.digest_of([trees[1]])
    assert evidence.dependencies(before)["device"] != proof.depends["device"]
    assert stale(before, proof) == ""


def test_another_engine_makes_a_proof_stale(package, monkeypatch):
    item = package()
    proof = _proof(item)
    versions = evidence.installed_versions()
    monkeypatch.setattr(evidence, "installed_versions", lambda: {**versions, "torch": "9.9", "vllm": "9.9"})

    assert stale(item, proof) == "torch, vllm"


def test_a_proof_names_the_kind_of_cpu_that_its_quirk_depends_on(package, monkeypatch):
    on_amx = _QUIRK.replace('purpose("serve")', 'Fact("platform.cpu.amx").is_true()', 1).replace("Default,", "Default, Fact,")
    monkeypatch.setattr("quirks_core.facts.packages.cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(evidence, "installed_platform", lambda: "cpu")

    assert "cpu" not in evidence.dependencies(package())
    assert evidence.dependencies(package(quirk=on_amx))["cpu"] == "avx2"


def test_another_kind_of_cpu_makes_no_proof_stale(monkeypatch):
    item = Registry.load().find("cpu-amx-mla")
    proof = _proof(item)
    monkeypatch.setattr("quirks_core.facts.packages.cpu_flags", lambda: frozenset({"avx2", "avx_vnni"}))

    assert evidence.dependencies(item)["cpu"] != proof.depends["cpu"]
    assert stale(item, proof) == ""


def test_patch_code_makes_a_proof_stale():
    item = Registry.load().find("cpu-moe-expert-parallel")
    depends = evidence.dependencies(item)
    assert {"patches", "scenario", "kit"} <= depends.keys()

    proof = _proof(item).model_copy(update={"depends": {**depends, "patches": "0" * 16}})

    assert stale(item, proof) == "patches"


def _with(item, part, value):
    """Returns a quirk with another value in one part of its declaration."""
    quirk = copy.copy(item.quirk)
    object.__setattr__(quirk, part, value)
    return replace(item, quirk=quirk)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        pytest.param("affected", (Affected("vllm", introduced="0.26.0", fixed="0.33.0"),), id="range"),
        pytest.param(
            "adjustments",
            lambda found: tuple(replace(one, expects=("0" * 12,) if one.expects else ()) for one in found),
            id="fingerprint",
        ),
        pytest.param("references", (report("https://example.org/1"),), id="reference"),
    ],
)
def test_what_a_quirk_learns_about_another_release_leaves_a_proof(part, changed):
    item = Registry.load().find("prefix-cache-after-update")
    value = changed(getattr(item.quirk, part)) if callable(changed) else changed
    other = _with(item, part, value)

    assert other.quirk != item.quirk
    assert stale(other, _proof(item)) == ""


def test_another_target_makes_a_proof_stale():
    item = Registry.load().find("prefix-cache-after-update")
    patches = tuple(replace(one, target="vllm.v1.engine.core:EngineCore.other") for one in item.quirk.adjustments)

    assert stale(_with(item, "adjustments", patches), _proof(item)) == "declaration"


def test_a_quirk_without_a_proof_was_never_proved(package):
    assert stale(package(), None) == "never proved"


def test_only_changed_evidence_is_run_anew(quirks, tmp_path):
    file = tmp_path / "evidence.json"
    names = ["cp-vlm", "world-size", "cp-gemma3"]
    assert quirks("prove", *names, "--output", file).code == 0
    record = json.loads(file.read_text(encoding="utf-8"))
    record["proofs"][0]["depends"]["declaration"] = "other"
    record["proofs"][1]["reason"] = "as it was"
    file.write_text(json.dumps(record), encoding="utf-8")

    done = quirks("prove", "cp-gemma3", "--output", file, "--json")

    assert [proof["id"] for proof in done.json["proofs"]] == ["cp-gemma3"]
    kept = {proof["id"]: proof for proof in json.loads(file.read_text(encoding="utf-8"))["proofs"]}
    assert list(kept) == ["cp-gemma3", "cp-vlm", "world-size"]
    assert kept["cp-gemma3"]["depends"]["declaration"] != "other"
    assert kept["cp-vlm"]["reason"] == "as it was"


def test_what_has_changed_needs_a_file_to_compare_with(quirks):
    done = quirks("prove", "--changed")

    assert done.code == 2
    assert "name it by --output" in done.err


_CHECKPOINTS = """
_SHARED = 1
def _small():
    return _SHARED
def _large():
    return _helper()
def _helper():
    return 2
_CONFIGS: dict = {"small": _small, "large": _large}
NOT_ON_CPU: dict = {}
def build(kind):
    return _CONFIGS[kind]()
"""


@pytest.mark.parametrize(
    ("old", "new", "concerned"),
    [
        ("return _SHARED", "return _SHARED + 1", {"small", "neither"}),
        ("return 2", "return 3", {"large", "neither"}),
        ("_SHARED = 1", "_SHARED = 2", {"small", "large", "neither"}),
        ("return _CONFIGS[kind]()", "return None", {"small", "large", "neither"}),
        ('"large": _large}', '"large": _large, "more": print}', {"neither"}),
        ("NOT_ON_CPU: dict = {}", 'NOT_ON_CPU: dict = {"large": "dies"}', {"neither"}),
    ],
)
def test_of_the_kits_checkpoints_a_scenario_depends_on_those_that_it_names(old, new, concerned):
    def digests(text):
        kinds = ("small", "large", "neither")  # where nothing tells which, all count
        trees = {kind: ast.parse(text) for kind in kinds}
        for kind, tree in trees.items():
            evidence._keep_kinds(tree, {kind})
        return {kind: evidence.digest_of([tree]) for kind, tree in trees.items()}

    before, after = digests(_CHECKPOINTS), digests(_CHECKPOINTS.replace(old, new))

    assert {kind for kind in before if before[kind] != after[kind]} == concerned


_LAB = """
class Lab:
    def __init__(self):
        self.plans = []
    def greedy(self):
        return self.drawn(0)
    def drawn(self, temperature):
        return temperature
    def trainer(self):
        return 1
"""


@pytest.mark.parametrize(
    ("old", "new", "concerned"),
    [
        ("return temperature", "return temperature + 1", {"greedy", "drawn"}),
        ("return 1", "return 2", {"trainer"}),
        ("self.plans = []", "self.plans = ()", {"greedy", "drawn", "trainer"}),
        ("    def trainer", "    def more(self):\n        return 3\n    def trainer", set()),
    ],
)
def test_a_scenario_depends_on_the_methods_of_the_lab_that_it_reaches(old, new, concerned):
    def digests(text):
        trees = {name: ast.parse(text) for name in ("greedy", "drawn", "trainer")}
        for name, tree in trees.items():
            evidence._keep_methods(tree, [ast.parse(f"lab.{name}()")])
        return {name: evidence.digest_of([tree]) for name, tree in trees.items()}

    before, after = digests(_LAB), digests(_LAB.replace(old, new))

    assert {name for name in before if before[name] != after[name]} == concerned


def test_a_field_that_a_later_python_has_changes_no_digest(monkeypatch):
    tree = ast.parse("def function():\n    return 1\n")
    before = evidence.digest_of([tree])

    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "later"))
    tree.body[0].later = []

    assert evidence.digest_of([tree]) == before
