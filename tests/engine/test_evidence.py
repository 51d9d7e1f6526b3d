"""The recorded evidence is that of this code and of the installed engine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from patience import HUNG_S, patience

from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import Installation
from quirks_core.facts.packages import installed_version
from quirks_core.plan.evaluate import affected
from quirks_core.plugins.registry import Registry
from worker.lab.kit import evidence_table as evidence
from worker.lab.kit.evidence import stale


def _built_in():
    return [item for item in Registry.load().loaded if item.is_built_in]


@pytest.mark.timeout(patience(3600))  # a change of the engine or the kit concerns all of it
def test_stale_evidence_is_run_anew():
    built_in = _built_in()
    path = evidence.path_for(built_in[0].quirk)
    recorded = evidence.read(path)
    changed = {item.quirk.id: why for item in built_in if (why := stale(item.quirk))}
    assert recorded.keys() <= {item.quirk.id for item in built_in}, f"{path} has rows of a quirk that is gone"
    if not changed:
        return

    command = [sys.executable, "-m", "quirks_core.cli", "prove", *changed, f"--timeout={HUNG_S:g}", "--record"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    listed = "\n".join(f"  {name}: {why}" for name, why in changed.items())
    todo = f"look at {path}, run make docs, and commit both"
    pytest.fail(f"evidence was stale, and was run anew; {todo}:\n{listed}\n{done.stdout}{done.stderr}")


def test_every_quirk_in_force_is_needed_by_its_evidence():
    active = [item.quirk for item in _built_in() if affected(Installation(), item.quirk).answer is not Answer.NO]
    here = "cpu", installed_version("vllm")
    rows = {quirk.id: [row for row in evidence.proved(quirk) if (row.platform, row.vllm) == here] for quirk in active}

    assert len(active) > 20
    assert not [name for name, found in rows.items() if any(row.decided is False or row.doubt for row in found)]
