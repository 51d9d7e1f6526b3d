"""``quirks list`` and ``quirks show``."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from quirks_core.discovery import discover

BUILT_IN = "gemma-normalizer-dummy-load"
RAISES = "raise RuntimeError('imported')\n"
PATCHES_PLUGGY = """
from quirks_core import Patch, Quirk, Severity, model_type, report
QUIRK = Quirk(
    id="acme-patch", title="t", flag="runtime", match=model_type("acme"), severity=Severity.NOISE,
    adjustments=Patch("pluggy:PluginManager.register", wrapper="acme:make", expects=("0" * 64,)),
    references=report("https://example.org"),
)
"""


def test_list_shows_every_installed_quirk(quirks):
    listed = quirks("list")

    assert listed.code == 0
    assert all(item.name in listed.out for item in discover())


def test_list_json_says_where_each_quirk_comes_from(quirks):
    rows = quirks("list", "--json").json

    row = next(row for row in rows if row["id"] == BUILT_IN)
    assert row.keys() == {"id", "distribution", "version", "entry_point"}
    assert row["distribution"] == "model-quirks"


def test_list_imports_no_plugin():
    code = (
        "import sys; from quirks_core.cli import main; main(['list', '--json']);"
        "sys.exit(any(name.startswith('quirks_plugins') for name in sys.modules))"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr


def test_list_shows_a_plugin_that_cannot_be_imported(quirks, install):
    install("acme-broken", RAISES)

    listed = quirks("list", "--json")

    assert listed.code == 0
    assert {"acme-broken"} <= {row["id"] for row in listed.json}


def test_show_says_what_a_quirk_declares(quirks):
    shown = quirks("show", BUILT_IN)

    assert shown.code == 0
    for text in (
        "Dummy weights overwrite",
        "load_format",
        "wrong_output",
        "vllm < 0.9.2",
        "require engine.load_format = 'auto'",
        "in the source of vllm.model_executor.models.gemma3 shows the fix",
        "report: https://github.com/NVIDIA-NeMo/RL/pull/298",
        "quirks_plugins/load_format/gemma_normalizer_dummy_load.py:",
        "When it can go",
    ):
        assert text in shown.out


@pytest.mark.parametrize("quirk_id", [item.name for item in discover()])
def test_show_json_has_the_same_keys_for_every_quirk(quirks, quirk_id):
    shown = quirks("show", quirk_id, "--json")

    assert shown.code == 0
    assert shown.json.keys() == {
        "id", "title", "flag", "severity", "affected", "adjustments", "references", "evidence", "cost", "since",
        "supersedes", "distribution", "location", "documentation",
    }  # fmt: skip


def test_an_unknown_id_is_an_error_with_the_nearest_one(quirks):
    shown = quirks("show", "gemma-normaliser-dummy-load")

    assert shown.code == 2
    assert f"did you mean '{BUILT_IN}'" in shown.err
    assert shown.out == ""


def test_showing_a_broken_plugin_names_it_and_says_why(quirks, install):
    install("acme-broken", RAISES)

    shown = quirks("show", "acme-broken")

    assert shown.code == 3
    assert "plugin 'acme-broken' of acme_broken 1.0" in shown.err
    assert "RuntimeError: imported" in shown.err
    assert "Traceback" not in shown.err


def test_a_broken_plugin_does_not_stand_in_the_way_of_others(quirks, install):
    install("acme-broken", RAISES)

    assert quirks("show", BUILT_IN).code == 0


def test_showing_a_quirk_asks_nothing_of_the_modules_that_happen_to_be_loaded(quirks, install):
    install("acme-lazy", "def __getattr__(name):\n    raise RuntimeError(f'asked for {name}')\n")
    importlib.import_module("acme_lazy")

    assert quirks("show", BUILT_IN).code == 0


def test_a_third_party_s_quirk_is_shown_with_its_distribution(quirks, install):
    install("acme-patch", PATCHES_PLUGGY)

    record = quirks("show", "acme-patch", "--json").json

    assert record["distribution"] == "acme_patch 1.0"
    assert record["adjustments"] == ["patch pluggy:PluginManager.register by acme:make"]
