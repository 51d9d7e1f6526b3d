"""``quirks list`` and ``quirks show``."""

from __future__ import annotations

import re
from collections import Counter

from declarations import declared

from quirks_core import Kind
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry

BUILT_IN = "gemma-normalizer-dummy-load"
RAISES = "raise RuntimeError('imported')\n"
#: What another package's quirk asks for.
ADJUSTMENTS = """[
    Patch("pluggy:PluginManager.register", wrapper="acme:make", expects="0" * 12),
    Require("engine.block_size", at_most=32, when=~typed("engine.seed")),
    Default("engine.seed", lambda _: 7),
]"""


def test_list_says_where_each_quirk_is_from_and_what_it_is_about_without_an_import(quirks, install):
    install("acme-patch", f"QUIRK = Quirk(title='Too ' 'slow', flag='runtime')\n{RAISES}")
    install("acme-hook", {"acme-pack": "acme_hook"}, acme_hook=RAISES)
    install("acme-odd", "QUIRK = Quirk(title=f'{1}', flag=other.SLEEP, *QUIRK)\n")
    install("acme-unreadable", "QUIRK = (\n")

    install("acme-rule", "QUIRK = Quirk(title='Never', kind=Kind.RULE)\n")
    keys = ("title", "flag", "kind")

    listed, found = quirks("list"), {row["id"]: row for row in quirks("list", "--json").json}

    rows = {name: tuple(row[key] for key in keys) for name, row in found.items()}
    origin = {"id": "acme-pack", "distribution": "acme-hook", "version": "1.2", "entry_point": "acme_hook"}
    assert found["acme-pack"] == origin | dict.fromkeys(keys)
    assert all(item.name in listed.out and item.name in rows for item in discover())
    declared = {item.quirk.id: tuple(getattr(item.quirk, key) for key in keys) for item in Registry.load().loaded}
    assert declared.items() <= rows.items()
    assert rows["acme-patch"] == ("Too slow", "runtime", "workaround")
    assert rows["acme-rule"] == ("Never", None, "rule")
    assert {rows[name] for name in ("acme-pack", "acme-odd", "acme-unreadable")} == {(None, None, None)}
    assert re.search(r"^  acme-patch +workaround  Too slow \(runtime\)$", listed.out, re.M)
    assert re.search(r"^  acme-pack +\?           declared by acme_hook$", listed.out, re.M)


def test_list_counts_the_quirks_of_each_kind(quirks):
    kinds = Counter(item.quirk.kind for item in Registry.load().loaded)

    every, rules = quirks("list"), quirks("list", "--kind", "rule")

    assert every.out.splitlines()[-1] == ", ".join(f"{kinds[kind]} {kind}s" for kind in Kind)
    assert rules.out.splitlines()[-1] == f"0 workarounds, {kinds[Kind.RULE]} rules, 0 features"
    assert {row["kind"] for row in quirks("list", "--kind", "feature", "--json").json} == {"feature"}
    assert "(choose from 'workaround', 'rule', 'feature')" in quirks("list", "--kind", "rul").err


#: Programs rely on them.
KEYS = {
    "id", "title", "flag", "kind", "severity", "match", "affected", "adjustments", "references", "evidence",
    "cost", "since", "supersedes", "distribution", "location", "documentation",
}  # fmt: skip


def test_show_says_what_a_quirk_declares(quirks):
    shown, record = quirks("show", BUILT_IN), quirks("show", BUILT_IN, "--json").json

    parts = [record[name] for name in ("title", "flag", "severity", "match", "affected", "cost", "location")]
    texts = [*parts, *record["adjustments"], *record["references"], record["evidence"][0]]
    assert record.keys() == KEYS
    assert (shown.code, record["adjustments"]) == (0, ["require: engine.load_format = auto instead of dummy"])
    literals = ("vllm < 0.9.2", "applies while the source of", "When it can go")
    assert [text for text in [*texts, *literals] if text not in shown.out] == []


def test_a_third_partys_quirk_is_shown_with_its_distribution(quirks, install):
    install("acme-patch", declared("acme-patch", adjustments=ADJUSTMENTS))

    record = quirks("show", "acme-patch", "--json").json

    assert record["distribution"] == "acme-patch 1.2"
    patch, require, default = record["adjustments"]
    assert patch.startswith("patch: pluggy:PluginManager.register")
    assert require == "require: engine.block_size ≤ 32, if typed.engine.seed (false)"
    assert default.startswith("default: engine.seed = what follows from the run")
