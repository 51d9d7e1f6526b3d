"""``quirks fingerprint``: what a patch must expect of its target."""

from __future__ import annotations

import argparse
import json

from quirks_core.errors import UsageError
from quirks_core.fingerprints import HOMELESS, fingerprint

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the target."""
    parser.add_argument("target", metavar="TARGET", help="package.module:Class.attribute or package.module:function")


def run_fingerprint(options: argparse.Namespace) -> int:
    """Prints the fingerprint of the installed source, ready to be pasted into ``expects``.

    Raises:
        UsageError: The target is not of that form, or its module or class is not installed.
    """
    module, colon, path = options.target.partition(":")
    if not (module and colon and path):
        raise UsageError(f"{options.target!r} is not of the form package.module:Class.attribute")
    found = fingerprint(options.target, lines=True)
    if found == HOMELESS:
        raise UsageError(f"{options.target}: the installed packages have no such module or class")
    if options.json:
        print(json.dumps({"target": options.target, "fingerprint": found}, indent=2, sort_keys=True))
        return 0
    print("expects=(")
    for start in range(0, len(found), _WIDTH):
        print(f'    "{found[start : start + _WIDTH]}"')
    print("),")
    return 0
