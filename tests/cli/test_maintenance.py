"""``quirks lock`` and ``quirks fingerprint``, and runs that are held against plugins and a lock."""

from __future__ import annotations

import ast
import json
from importlib.metadata import version

import pytest
from declarations import declared

from quirks_core.plugins.finder import discover
from quirks_core.plugins.lock import Lock
from quirks_core.source.vllm_source import INSTALLED

TARGET = "pluggy._manager:PluginManager.register"
PATCHES = declared("acme-patch", adjustments=f'Patch("{TARGET}", wrapper="acme:make", expects="FOUND")')


def test_lock_writes_every_installed_quirk(quirks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    written, elsewhere = quirks("lock", "--json"), quirks("lock", "--output", "mine.lock")

    assert (written.code, elsewhere.code) == (0, 0)
    assert Lock.model_validate(written.json) == Lock.read(tmp_path / "quirks.lock") == Lock.read(tmp_path / "mine.lock")
    assert {item.name for item in discover()} <= {item["id"] for item in written.json["quirks"]}
    assert "--locked" in elsewhere.out


def test_what_is_broken_cannot_be_locked(quirks, install, tmp_path):
    install("acme-broken", "QUIRK = 3\n")

    written = quirks("lock", "--output", tmp_path / "quirks.lock")

    assert (written.code, "acme-broken" in written.err) == (3, True)
    assert not (tmp_path / "quirks.lock").exists()


@pytest.mark.parametrize("verb", [("plan",), ("explain", "double-bos")], ids=lambda verb: verb[0])
def test_a_run_is_held_against_plugins_and_lock_where_asked(quirks, model, install, tmp_path, verb):
    """What is switched off need be neither sound nor locked."""
    lock, run = tmp_path / "quirks.lock", (*verb, "--model", model())
    assert quirks("lock", "--output", lock).code == 0
    install("acme-broken", "raise RuntimeError('imported')\n")
    install("acme-eager", declared("acme-eager"))

    strict, locked = quirks(*run, "--strict"), quirks(*run, "--locked", lock)
    off = [quirks(*run, *option, "--disable", "third-party").code for option in (("--strict",), ("--locked", lock))]

    assert ((strict.code, strict.out), (locked.code, locked.out), off) == ((3, ""), (1, ""), [0, 0])
    assert "plugin 'acme-broken' of acme-broken 1.2" in strict.err
    assert "acme-eager of acme-eager 1.2 is not in the lock file" in locked.err


def test_fingerprint_prints_what_can_be_pasted_into_a_patch(quirks):
    printed, record = quirks("fingerprint", TARGET), quirks("fingerprint", TARGET, "--json").json

    call = ast.parse(f"Patch({printed.out.rstrip().removesuffix(',')})", mode="eval").body
    assert printed.code == 0
    assert ast.literal_eval(call.keywords[0].value) == (INSTALLED.fingerprint(TARGET),)
    assert record == {"target": TARGET, "fingerprint": INSTALLED.fingerprint(TARGET)}


def test_writing_keeps_the_data_file_of_a_distribution(quirks, install, site):
    package = site / "acme_patch"
    package.mkdir()
    (package / "__init__.py").write_text(PATCHES.replace("FOUND", INSTALLED.fingerprint(TARGET)), encoding="utf-8")
    install("acme-patch", {"acme-patch": "acme_patch:QUIRK"})

    first, second = (quirks("fingerprint", "--write", "Acme.Patch", "--json") for _ in range(2))

    data = json.loads((package / "model_quirks.json").read_text(encoding="utf-8"))
    (known,) = data["fingerprints"][TARGET].values()
    assert (first.code, first.json) == (0, {"file": str(package / "model_quirks.json"), "changed": True})
    assert (second.code, second.json["changed"]) == (0, False)
    assert data["since"] == {"acme-patch": "1.2"}
    assert list(data["fingerprints"][TARGET]) == [INSTALLED.fingerprint(TARGET)]
    assert known["versions"] == [version("pluggy")]
    assert quirks("show", "acme-patch", "--json").json["since"] == "1.2"
