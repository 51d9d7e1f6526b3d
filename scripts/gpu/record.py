"""Records the conclusions of a report that was made on another machine in the distributions' data files.

usage: python scripts/gpu/record.py FILE
"""

import sys
from pathlib import Path

from quirks_core.registry import Registry
from worker.cli.prove import record
from worker.testing.proof import Report

registry = Registry.load()
installed = {item.quirk.id for item in registry.loaded}
record(registry, [proof for proof in Report.read(Path(sys.argv[1])).proofs if proof.id in installed])
