"""The recorded evidence (docs/evidence.json) is that of this code and of the installed engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import HUNG_S, patience

from quirks_core.declaration import data_file
from quirks_core.plugins.lifecycle import Stage, lifecycle
from quirks_core.plugins.registry import Registry
from worker.lab.kit.evidence import stale
from worker.lab.kit.proof import Report

_ROOT = Path(__file__).resolve().parents[2]
_FILE = _ROOT / "docs/evidence.json"
#: With those that were made on other machines (scripts/gpu/prove.sh).
_FILES = sorted(_FILE.parent.glob("evidence*.json"))


@pytest.mark.timeout(patience(3600))  # a change of the engine or the kit concerns all of it
def test_evidence_is_run_anew_where_what_it_depends_on_has_changed():
    proofs = {proof.id: proof for proof in Report.read(_FILE).proofs}
    built_in = [item for item in Registry.load().loaded if item.is_built_in]
    changed = {item.quirk.id: why for item in built_in if (why := stale(item, proofs.get(item.quirk.id)))}
    assert proofs.keys() <= {item.quirk.id for item in built_in}, "make prove: the evidence of a quirk that is gone is recorded"
    if not changed:
        return

    command = [
        sys.executable,
        "-m",
        "quirks_core.cli",
        "prove",
        *changed,
        f"--timeout={HUNG_S:g}",
        "--output",
        _FILE,
        "--record",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    listed = "\n".join(f"  {name}: {why}" for name, why in changed.items())
    todo = "look at docs/evidence.json, run make docs, and commit both"
    pytest.fail(f"evidence was stale, and was run anew; {todo}:\n{listed}\n{done.stdout}{done.stderr}")


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_the_data_file_that_ships_holds_the_recorded_conclusions(file):
    shipped = {item.quirk.id: data_file.proved(item.quirk) for item in Registry.load().loaded if item.is_built_in}

    for proof in Report.read(file).proofs:
        assert proof.proved is None or proof.proved in shipped[proof.id], f"quirks prove --record: {proof.id}"


def test_every_quirk_that_is_in_force_here_is_needed_here_by_all_of_its_evidence():
    proofs = {proof.id: proof for proof in Report.read(_FILE).proofs}
    active = [item for item in Registry.load().loaded if item.is_built_in and lifecycle(item).stage is Stage.ACTIVE]

    assert len(active) > 20
    assert not [item.quirk.id for item in active if proofs[item.quirk.id].calls_for_action]
