"""Takes over a report that was made on another machine: the page beside it, and the data files of the distributions.

usage: python scripts/gpu/record.py docs/evidence-h200.json
"""

import sys
from pathlib import Path

from quirks_core.plugins.registry import Registry
from worker.lab.cli.prove import record
from worker.lab.kit.proof import Report

file = Path(sys.argv[1])
registry = Registry.load()
installed = {item.quirk.id for item in registry.loaded}
report = Report.read(file)
report = report.model_copy(update={"proofs": tuple(proof for proof in report.proofs if proof.id in installed)})
file.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
file.with_suffix(".md").write_text(report.markdown(), encoding="utf-8")
record(registry, report.proofs)
