"""Lets ``python -m quirks_core.cli`` do what ``quirks`` does."""

from __future__ import annotations

import sys

from quirks_core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
