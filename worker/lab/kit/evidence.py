"""What a proof depends on: recorded with it, compared later, so that evidence is run anew only where it has become stale."""

from __future__ import annotations

import os

from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import Installation
from quirks_core.facts.packages import cpu_features, cpu_kind, device, installed_platform, installed_versions
from worker.lab.kit import evidence_table as evidence
from worker.lab.kit import lab
from worker.lab.kit.digest import code_digest
from worker.lab.kit.evidence_table import PACKAGES

#: Set to 1, it makes the engines of proofs eager on a GPU, too.
_EAGER = "QUIRKS_LAB_EAGER"


def captures_graphs() -> bool:
    """Returns whether the engines of proofs run CUDA graphs, as vLLM does by default: on a GPU, unless `_EAGER` is set."""
    return installed_platform() == "cuda" and os.environ.get(_EAGER) != "1"


def set_mode() -> None:
    """Leaves graphs and compilation of the lab's engines to vLLM where they are to have them; before `set_environment`."""
    if captures_graphs():
        del lab._ENGINE["enforce_eager"], lab._ENVIRONMENT["TORCHDYNAMO_DISABLE"]


def elsewhere(quirk: Quirk) -> str:
    """Returns why no run on this installation concerns a quirk (another platform, say); empty if one may."""
    trace = quirk.match.trace(Installation())
    return "" if trace.answer is not Answer.NO else f"no run on this installation concerns the quirk ({trace.decisive})"


def dependencies(quirk: Quirk) -> dict[str, str]:
    """Returns everything that the evidence of a quirk depends on, by name: versions as they are, its code as a digest."""
    installed = installed_versions()
    found = {
        "code": code_digest(quirk),
        "platform": installed_platform() or "",
        "cpu": cpu_kind(cpu_features()) if quirk.depends_on_cpu and installed_platform() == "cpu" else "",
        "device": device(),
        "mode": "graphs" if captures_graphs() else "",
        **{name: installed.get(name, "") for name in PACKAGES},
    }
    return {name: text for name, text in found.items() if text}


def stale(quirk: Quirk) -> str:
    """Says what has changed since a quirk was proved here, the kind of CPU or GPU excepted.

    Returns:
        The names of `dependencies`; empty if nothing has changed, or there is nothing to be run here.
    """
    if (not quirk.evidence and not quirk.paired_runs) or elsewhere(quirk):
        return ""
    now = dependencies(quirk)
    made = [item for item in evidence.proved(quirk) if (item.platform, item.vllm) == (now.get("platform"), now.get("vllm"))]
    here = [item for item in made if not item.runner or item.graphs == captures_graphs()]
    return min((_changes(item, now) for item in here), key=len, default="never proved")


def _changes(made: evidence.Proved, now: dict[str, str]) -> str:
    before = {"code": made.digest, **made.model_dump(include=set(PACKAGES))}
    return ", ".join(name for name in ("code", *PACKAGES) if now.get(name, "") != before[name])
