"""Plugins that hang."""

import os
from pathlib import Path

if log := os.environ.get("ACME_IMPORT_LOG"):  # a test looks here for who was imported
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(f"{__name__}\n")
