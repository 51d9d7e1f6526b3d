"""The JSON that programs may rely on (docs/stability.md): what is printed fits its schema, which is that of the types."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
from pydantic import TypeAdapter

import quirks_core
from quirks_core.base.json_values import SCHEMA
from quirks_core.declaration.trace import Leaf
from quirks_core.hook import receipts
from quirks_core.ledger.account import Account
from quirks_core.plan.receipt import Acknowledgement, Effect, Receipt
from quirks_core.plan.records import Plan
from quirks_core.plan.summary import Summary
from quirks_core.reporting.finding import Finding
from quirks_core.upgrade.catalogue import Catalogue
from quirks_core.upgrade.finding import Report
from quirks_core.upgrade.patch_changes import PatchReport

FOLDER = Path(quirks_core.__path__[0]) / "schemas"
#: Keywords that say nothing of the form, or forbid what a later version may add.
LEFT_OUT = ("title", "description", "default", "additionalProperties")
REPORTS = ("Report", "PatchReport")


def plain(node, *, names=False):
    """A schema of pydantic's without words; every key of an object is there. With `names`, its keys are names, not keywords."""
    if isinstance(node, list):
        return [plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {
        key: plain(value, names=not names and key in ("properties", "$defs"))
        for key, value in node.items()
        if names or key not in LEFT_OUT
    }
    return found if names or "properties" not in found else {**found, "required": sorted(found["properties"])}


def with_key(schema, /, **properties):
    """A schema of objects that have more keys."""
    found = {**schema["properties"], **properties}
    return {**schema, "properties": found, "required": sorted(found)}


def schema_of(type_):
    """The schema of a type as JSON has it."""
    return plain(TypeAdapter(type_).json_schema(mode="serialization", by_alias=True))


def schemas():
    """Every document's schema, by its name."""
    version, plan, summary = {"const": SCHEMA}, schema_of(Plan), schema_of(Summary)
    leaf = with_key({"type": "object", "properties": {}}, **{key: {} for key in Leaf._fields})
    plan["$defs"]["Verdict"]["properties"]["trace"]["items"] = leaf  # a serialiser writes it, which shows no form
    doctor, upgrade = schema_of(list[Finding]), schema_of(Report | PatchReport | Catalogue)
    types = upgrade["$defs"]
    del types["Finding"]["properties"]["change"], doctor["$defs"]["Finding"]["properties"]["change"]
    types["Finding"]["required"].remove("change")
    doctor["$defs"]["Finding"]["required"] = ["level", "message", "subject"]  # what is empty is left out
    verdict = types.pop("Verdict", {"enum": ["go", "go, with these changes", "stop", "unknown"]})
    types |= {name: with_key(types[name], verdict=verdict) for name in REPORTS}
    references = [{"$ref": f"#/$defs/{name}"} for name in REPORTS]
    runs = with_key({"type": "object", "properties": {}}, verdict=verdict, runs={"additionalProperties": {"anyOf": references}})
    catalogue = with_key(types.pop("Catalogue"), work={"type": "integer"})
    either = [*references, {"$ref": "#/$defs/Runs"}, {"$ref": "#/$defs/Catalogue"}]
    return {
        "plan": {
            **with_key(plan, **summary["properties"], schema=version),
            "$defs": {**plan["$defs"], **summary["$defs"]},
        },
        "receipts": with_key(schema_of(receipts.Receipts), schema=version),
        "doctor": with_key(
            {"type": "object", "properties": {}, "$defs": doctor["$defs"]},
            schema=version,
            findings={"type": "array", "items": {"$ref": "#/$defs/Finding"}},
        ),
        "upgrade": {
            **with_key({"type": "object", "properties": {}}, schema=version),
            "anyOf": either,
            "$defs": {**types, "Runs": runs, "Catalogue": catalogue},
        },
    }


def check(name, document):
    """Holds a document against its schema, which has all of its keys."""
    schema = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    variants = [schema, *schema["$defs"].values()] if "anyOf" in schema else [schema]
    assert document.keys() - {"schema"} in [one.get("properties", {}).keys() - {"schema"} for one in variants]


@pytest.mark.parametrize("name", ["plan", "receipts", "doctor", "upgrade"])
def test_a_schema_is_that_of_its_types(name):
    """`make records` writes them anew; what goes from one is a change for users (docs/stability.md)."""
    text = json.dumps(schemas()[name], indent=1, sort_keys=True) + "\n"
    if os.environ.get("RECORD"):
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")

    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--model", "gemma3", "--set", "engine.load_format=dummy", "--assume", "vllm==0.9.1"),
        ("plan", "--model", "qwen3_moe", "--trainer", "trl", "--disable", "rollout-logprobs-processed"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_what_a_command_prints_fits_its_schema(quirks, model, words):
    words = [model(word) if word in ("gemma3", "qwen3_moe") else word for word in words]

    printed = quirks(*words, "--json").json

    assert printed["schema"] == SCHEMA
    check(words[0], printed)


def test_receipts_fit_their_schema(tmp_path):
    file = tmp_path / "receipts.json"
    process = Acknowledgement(
        pid=os.getpid(), process="EngineCore_DP0", digest="d", effects=(Effect(slot="env.A", before=1, after=2),)
    )
    receipts.begin(file)
    receipts.add(file, process)
    receipts.add(file, Receipt(digest="d", changes={"engine.seed": 1}, processes=(process,)))
    receipts.add(file, Account(pid=os.getpid(), host="h"))
    receipts.add(file, "none")

    check("receipts", json.loads(file.read_text(encoding="utf-8")))
