"""Compares the vLLM that a file pins with the one that it pinned at the last commit: a pre-commit hook and a step of CI."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: An exact pin, in a requirements file or in ``pyproject.toml``.
_PIN = re.compile(r"^[^#\n]*?(?<![\w.-])vllm(?:-cpu)?(?:\[[^\]]*\])?\s*==\s*(\d[\w.]*)", re.MULTILINE)
#: The codes that let a commit pass: go, and with ``--allow-changes`` also go with changes.
_GO, _CHANGES, _FAILED = 0, 1, 5


def pin_in(text: str) -> str | None:
    """Returns the version of vLLM that a file pins; None if it pins none."""
    found = _PIN.search(text)
    return found[1] if found else None


def main(words: Sequence[str] | None = None) -> int:
    """Compares the pins of files; returns the gravest exit code of ``quirks upgrade``."""
    parser = argparse.ArgumentParser(prog="quirks-upgrade", description=__doc__)
    parser.add_argument("--run", default="", metavar="WORDS", help="how the run is described: '--patches mine', '--model ./m'")
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="the commit that has the pin before")
    parser.add_argument("--allow-changes", action="store_true", help="pass also if the run needs changes")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(words)
    codes = [_compare(file, options) for file in options.files]
    return max(codes, default=_GO)


def _compare(file: Path, options: argparse.Namespace) -> int:
    git = shutil.which("git")
    if git is None:
        sys.stderr.write("error: there is no git\n")
        return _FAILED
    shown = subprocess.run(  # noqa: S603 - git itself
        [git, "show", f"{options.since}:./{file.as_posix()}"], capture_output=True, text=True, check=False
    )  # fmt: skip
    before, after = pin_in(shown.stdout), pin_in(file.read_text(encoding="utf-8"))
    if before is None or after is None or before == after:
        return _GO
    command = [sys.executable, "-m", "quirks_core.cli", "upgrade", "--from", before, "--to", after, *options.run.split()]
    code = subprocess.run(command, check=False).returncode  # noqa: S603 - this command
    return _GO if code == _CHANGES and options.allow_changes else code


if __name__ == "__main__":
    sys.exit(main())
