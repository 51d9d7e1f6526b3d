"""A declaration is data: JSON holds it, it survives pickling, and its digest sees every change but its place."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pickle
import sys

import pytest

from quirks_core import (
    Affected,
    Default,
    Kind,
    ModelFlag,
    Patch,
    Quirk,
    Severity,
    SymbolProbe,
    purpose,
    report,
    yes,
)
from quirks_core.declaration.encoding import digest, encode
from quirks_core.declaration.quirk import Location
from quirks_core.plugins.registry import Registry


def test_every_built_in_quirk_is_data_with_a_digest_of_its_own():
    quirks = [item.quirk for item in Registry.load().loaded]

    assert pickle.loads(pickle.dumps(quirks)) == quirks  # noqa: S301 - our own bytes
    assert json.loads(json.dumps([encode(quirk) for quirk in quirks])) == [encode(quirk) for quirk in quirks]
    assert len({digest(quirk) for quirk in quirks}) == len(quirks)


CHANGES = {
    "id": "other",
    "title": "Another title",
    "flag": ModelFlag.TOKENIZER,
    "match": purpose("eval"),
    "adjustments": Default("engine.enforce_eager", False),
    "affected": Affected("vllm", fixed="0.9"),
    "severity": Severity.CRASH,
    "references": report("https://example.org/other"),
    "evidence": SymbolProbe("vllm.envs", present_means_affected=True),
    "examples": yes(),
    "kind": Kind.RULE,
    "supersedes": "another",
    "cost": "a lot",
}


def test_the_digest_sees_every_field_that_can_change_a_run(make_quirk):
    seen = {name: value for name, value in CHANGES.items() if name not in ("examples", "kind")}
    digests = {digest(make_quirk(**{name: value})) for name, value in seen.items()}
    digests |= {digest(make_quirk(**{name: CHANGES[name]})) for name in ("examples", "kind")}
    digests.add(digest(make_quirk(severity=Severity.CRASH, crash="it ends")))

    assert {field.name for field in dataclasses.fields(Quirk)} - set(CHANGES) == {"crash", "location"}
    assert digest(make_quirk()) in digests
    assert len(digests) == len(seen) + 2
    assert digest(make_quirk(location=Location("a.py", 1))) == digest(make_quirk(location=Location("b.py", 2)))
    assert "location" not in encode(make_quirk())


CODE = "def wrap(original):\n    return original\n\n\ndef value(context):\n    return 1\n"


@pytest.mark.parametrize("changed", ["return original", "return 1"])
def test_the_digest_sees_the_code_that_a_declaration_names(make_quirk, write_modules, changed):
    def made():
        sys.modules.pop("fake_code", None)
        module = importlib.import_module("fake_code")
        patch = Patch("vllm.envs:x", wrapper="fake_code:wrap", expects="0" * 12)
        quirk = make_quirk(adjustments=(patch, Default("engine.seed", module.value)))
        assert encode(quirk)["adjustments"][1]["operand"]["$function"] == "fake_code:value"
        return digest(quirk)

    write_modules({"fake_code.py": CODE})
    before = made()
    write_modules({"fake_code.py": CODE.replace(changed, f"{changed} + 0  # changed")})

    assert made() != before
