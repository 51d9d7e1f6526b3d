"""Takes over a report that was made on another machine, into the data files of the distributions; `make docs` writes the page.

usage: python scripts/gpu/record.py docs/evidence-cuda-VERSION.json
"""

import json
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
text = json.dumps(report.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False)
file.write_text(text + "\n", encoding="utf-8")
record(registry, report.proofs)
