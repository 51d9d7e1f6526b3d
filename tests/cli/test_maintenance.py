"""``quirks lock``, ``quirks audit-lifecycle`` and ``quirks fingerprint``."""

from __future__ import annotations

import ast

import pytest

from quirks_core import discover
from quirks_core.fingerprints import fingerprint
from quirks_core.lock import Lock

EXPIRED = """
from quirks_core import Affected, Advise, Quirk, Severity, model_type, report
QUIRK = Quirk(
    id="acme-old", title="t", flag="enforce_eager", match=model_type("qwen3"), severity=Severity.SLOW,
    adjustments=Advise("look out"), references=report("https://example.org"), affected=Affected("vllm", fixed="0.8"),
)
"""


def test_lock_writes_every_installed_quirk(quirks, tmp_path):
    file = tmp_path / "mine.lock"

    written = quirks("lock", "--output", file)

    assert written.code == 0
    assert {item.name for item in discover()} <= {item.id for item in Lock.read(file).quirks}
    assert "--locked" in written.out


def test_lock_writes_into_the_current_folder_unless_told_otherwise(quirks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    written = quirks("lock", "--json")

    assert Lock.model_validate(written.json) == Lock.read(tmp_path / "quirks.lock")


def test_what_is_broken_cannot_be_locked(quirks, install, tmp_path):
    install("acme-broken", "QUIRK = 3\n")

    written = quirks("lock", "--output", tmp_path / "quirks.lock")

    assert written.code == 3
    assert "acme-broken" in written.err
    assert not (tmp_path / "quirks.lock").exists()


def test_a_lock_that_cannot_be_written_is_a_usage_error(quirks, tmp_path):
    written = quirks("lock", "--output", tmp_path / "no-such-folder" / "quirks.lock")

    assert written.code == 2
    assert "cannot be written" in written.err


def test_audit_lifecycle_tells_the_stage_and_the_evidence_of_every_quirk(quirks):
    audited = quirks("audit-lifecycle", "--json")

    rows = {row["id"]: row for row in audited.json}
    assert audited.code == 0
    assert {item.name for item in discover()} <= rows.keys()
    assert all(row.keys() == {"id", "distribution", "version", "stage", "evidence"} for row in audited.json)
    dormant = rows["gemma-normalizer-dummy-load"]
    assert dormant["stage"] == "dormant"
    assert "affected: vllm < 0.9.2" in dormant["evidence"]
    assert any(text.startswith("the installed source has the fix: ") for text in dormant["evidence"])
    assert any(text.startswith("paired run, ") for text in dormant["evidence"])


def test_audit_lifecycle_says_the_same_to_people(quirks):
    audited = quirks("audit-lifecycle")

    assert audited.code == 0
    assert "gemma-normalizer-dummy-load" in audited.out
    assert "dormant" in audited.out
    assert "oldest supported: vllm 0.9.0" in audited.out


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_expired_quirk_is_a_finding_that_says_delete_me(quirks, install, options):
    install("acme-old", EXPIRED)

    audited = quirks("audit-lifecycle", *options)

    assert audited.code == 1
    assert "acme-old" in audited.out
    assert "expired" in audited.out
    assert "delete this quirk" in audited.out


def test_fingerprint_prints_what_can_be_pasted_into_a_patch(quirks):
    printed = quirks("fingerprint", "pluggy._manager:PluginManager.register")

    assert printed.code == 0
    call = ast.parse(f"Patch({printed.out.rstrip().removesuffix(',')})", mode="eval").body
    assert ast.literal_eval(call.keywords[0].value) == fingerprint("pluggy._manager:PluginManager.register", lines=True)


def test_fingerprint_json_names_the_target(quirks):
    target = "pluggy._manager:PluginManager.register"

    assert quirks("fingerprint", target, "--json").json == {"target": target, "fingerprint": fingerprint(target, lines=True)}


def test_fingerprint_of_what_a_patch_would_add_is_absent(quirks):
    assert quirks("fingerprint", "pluggy._manager:PluginManager.no_such", "--json").json["fingerprint"] == "absent"


@pytest.mark.parametrize("target", ["pluggy", "pluggy:", ":register", "", ":", "pluggy.PluginManager"])
def test_a_target_of_another_form_is_a_usage_error_that_shows_the_form(quirks, target):
    printed = quirks("fingerprint", target)

    assert (printed.code, printed.out) == (2, "")
    assert "package.module:Class.attribute" in printed.err


@pytest.mark.parametrize(
    "target",
    ["no_such_package:function", "pluggy.no_such:function", "pluggy:NoSuch.method", "..:x", "a b:c", "sys:path", "\0:x"],
)
def test_a_target_that_is_not_installed_is_a_usage_error(quirks, target):
    printed = quirks("fingerprint", target)

    assert (printed.code, printed.out) == (2, "")
    assert "no such module or class" in printed.err
