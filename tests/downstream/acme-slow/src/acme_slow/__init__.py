"""Waits for a server longer than anybody likes."""

import os
import time
from pathlib import Path

from quirks_core import Advise, Quirk, Severity, model_type, report

if log := os.environ.get("ACME_IMPORT_LOG"):  # a test looks here for who was imported
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(f"{__name__}\n")

time.sleep(float(os.environ.get("ACME_SLOW_S", "3.3")))

QUIRK = Quirk(
    id="acme-slow",
    title="Acme's server knows more",
    flag="sleep",
    match=model_type("acme_moe"),
    adjustments=Advise("ask the server"),
    severity=Severity.NOISE,
    references=report("https://example.org/acme/4"),
)
