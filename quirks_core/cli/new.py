"""``quirks new``: makes a complete package with one quirk, whose tests pass as they are."""

from __future__ import annotations

import argparse
import json
import keyword
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version

from quirks_core.base.errors import DeclarationError, UsageError
from quirks_core.cli.command import Command
from quirks_core.cli.screen import Screen, line
from quirks_core.declaration.flags import BUILT_IN
from quirks_core.plugins.finder import discover

#: Import names that a third party's package must not take.
_TAKEN = {"quirks_core", "quirks_plugins", "tests", "worker", *sys.stdlib_module_names}

#: Where each template goes; the paths are templates themselves.
_FILES: Mapping[str, str] = {
    "gitignore.template": ".gitignore",
    "README.md.template": "README.md",
    "pyproject.toml.template": "pyproject.toml",
    "init.py.template": "src/$package/__init__.py",
    "quirk.py.template": "src/$package/$module.py",
    "test_quirk.py.template": "tests/test_$module.py",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the package's name, its folder and the quirk's id."""
    parser.add_argument("name", metavar="NAME", help="name of the distribution, for example acme-quirks")
    parser.add_argument("--folder", metavar="DIR", type=Path, help="where to make it (default: NAME)")
    parser.add_argument("--id", metavar="ID", help="id of its first quirk (default: NAME/example)")


def run_new(options: argparse.Namespace) -> int:
    """Writes the package.

    Raises:
        UsageError: The name or the id cannot be used, or the folder is in use.
    """
    words = _words(options.name, options.id)
    folder: Path = options.folder or Path(words["name"])
    written = _write(folder, words)
    if options.json:
        print(json.dumps({"folder": str(folder), "id": words["id"], "files": written}, indent=2, sort_keys=True))
        return 0
    screen = Screen()
    for name in written:
        screen.say(line(folder / name))
    screen.say("\nnext:")
    for step in (f"cd {folder}", "pip install -e .", "pytest", f"quirks validate {words['name']}"):
        screen.say(line(step), indent=2)
    screen.say(f"then put your own quirk into src/{words['package']}/{words['module']}.py")
    return 0


def _words(typed: str, quirk_id: str | None) -> dict[str, str]:
    """What the templates' placeholders stand for."""
    try:
        name = canonicalize_name(typed, validate=True)
    except InvalidName:
        raise UsageError(
            f"{typed!r} is no name of a distribution: letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        ) from None
    package = name.replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package) or _is_taken(package, name):
        raise UsageError(f"{typed!r} cannot be used: Python would import it as {package!r}; take a name like 'acme-quirks'")
    quirk_id = quirk_id or f"{name}/example"
    _check_id(quirk_id, name)
    own = quirk_id.rpartition("/")[2]
    module = re.sub(r"[^a-z0-9]+", "_", own)
    if not module.isidentifier() or keyword.iskeyword(module):
        module = f"quirk_{module}"
    release = Version(version("model-quirks")).base_version
    contract = "".join(part.capitalize() for part in re.split(r"[^a-z0-9]+", own))
    return {"name": name, "package": package, "module": module, "id": quirk_id, "contract": contract, "core": release}


def _is_taken(package: str, name: str) -> bool:
    """The import name belongs to another package; an existing package of quirks may be made again."""
    own = {canonicalize_name(item.distribution) for item in discover()}
    return name == BUILT_IN or package in _TAKEN or (name not in own and find_spec(package) is not None)


def _check_id(quirk_id: str, name: str) -> None:
    from quirks_core import Advise, ModelFlag, Quirk, Severity, purpose, report

    try:
        Quirk(
            id=quirk_id, title="-", flag=ModelFlag.ENVIRONMENT, match=purpose("rollout"), adjustments=(Advise("-"),),
            severity=Severity.NOISE, references=(report("-"),),
        )  # fmt: skip
    except DeclarationError as error:
        raise UsageError(f"--id: {error}") from None
    prefix, slash, _ = quirk_id.partition("/")
    if slash and prefix != name:
        raise UsageError(f"--id {quirk_id!r}: what stands before the slash is the distribution's name, {name!r}")
    for item in discover():
        if item.name == quirk_id and canonicalize_name(item.distribution) != name:
            raise UsageError(f"--id {quirk_id!r} is taken by {item.distribution} {item.version}; try '{name}/{quirk_id}'")


def _write(folder: Path, words: Mapping[str, str]) -> list[str]:
    """Writes every file, and returns their paths in the folder."""
    templates = files("quirks_core") / "templates"
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} exists and is not an empty folder; name another one with --folder")
        written = []
        for template, path in _FILES.items():
            name = Template(path).substitute(words)
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            text = (templates / template).read_text(encoding="utf-8")
            file.write_text(Template(text).substitute(words), encoding="utf-8")
            written.append(name)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from None
    return written


COMMAND = Command("make a package with a quirk and its tests", run_new, add_arguments)
