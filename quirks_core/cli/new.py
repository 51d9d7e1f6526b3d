"""``quirks new``: makes a complete package with one quirk, whose tests pass as they are, or the file of a built-in quirk."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version

from quirks_core.base.errors import UsageError
from quirks_core.cli.command import Command, print_json
from quirks_core.declaration.flags import BUILT_IN, ModelFlag
from quirks_core.declaration.quirk import problem_of_id
from quirks_core.plugins.finder import discover, file_name
from quirks_core.reporting.terminal import Screen, line
from quirks_core.source.vllm_source import INSTALLED

#: Import names that a third party's package must not take.
_TAKEN = {"tests", "worker", *sys.stdlib_module_names}

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
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("name", metavar="NAME", nargs="?", help="name of the distribution, for example acme-quirks")
    what.add_argument("--builtin", metavar="ID", help="write the file of a new built-in quirk into this checkout instead")
    parser.add_argument("--folder", metavar="DIR", type=Path, help="where to make it (default: NAME)")
    parser.add_argument("--id", metavar="ID", help="id of its first quirk (default: NAME/example)")
    parser.add_argument(
        "--flag", metavar="FLAG", choices=[*map(str, ModelFlag)], default=ModelFlag.ENFORCE_EAGER,
        help="flag of the quirk, and folder of a built-in one (default: enforce_eager)",
    )  # fmt: skip


def run_new(options: argparse.Namespace) -> int:
    """Writes the package, or the file.

    Raises:
        UsageError: The name or the id cannot be used, or the folder or file is in use.
    """
    if options.builtin:
        words = {"id": options.builtin, "flag": ModelFlag(options.flag).name}
        folder, texts = _built_in(options.builtin, options.flag, words)
        place, steps = next(iter(texts)), ["quirks validate model-quirks"]
    else:
        words = _words(options.name, options.id, options.flag)
        folder = options.folder or Path(words["name"])
        texts = {Template(path).substitute(words): _filled(template, words) for template, path in _FILES.items()}
        place = f"src/{words['package']}/{words['module']}.py"
        steps = [f"cd {folder}", "pip install -e .", "pytest", f"quirks validate {words['name']}"]
    _write(folder, texts, into_checkout=bool(options.builtin))
    if options.json:
        print_json({"folder": str(folder), "id": words["id"], "files": list(texts)})
        return 0
    screen = Screen()
    for name in texts:
        screen.say(line(folder / name))
    screen.say("\nnext:")
    for step in steps:
        screen.say(line(step), indent=2)
    screen.say(f"then put your own quirk into {place}")
    return 0


def _built_in(quirk_id: str, flag: str, words: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    """The checkout, and the one file of a built-in quirk, in the folder of its flag."""
    _check_id(quirk_id, "--builtin", BUILT_IN)
    if file_name(quirk_id).replace("_", "-") != quirk_id:
        raise UsageError(f"--builtin {quirk_id!r}: the id of a built-in quirk is its file's name, words joined by dashes")
    package = next(iter(INSTALLED.places("quirks_plugins")), Path())
    if not (package.parent / "pyproject.toml").is_file():
        raise UsageError(f"{package} is no checkout of model-quirks: clone it, and install it by 'make setup'")
    texts = {f"quirks_plugins/{flag}/{file_name(quirk_id)}.py": _filled("quirk.py.template", words)}
    if not (package / flag).exists():
        texts[f"quirks_plugins/{flag}/__init__.py"] = f'"""Built-in quirks of the flag {words["flag"]}."""\n'
    return package.parent, texts


def _words(typed: str, quirk_id: str | None, flag: str) -> dict[str, str]:
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
    _check_id(quirk_id, "--id", name)
    contract = "".join(part.capitalize() for part in re.split(r"[^a-z0-9]+", quirk_id.rpartition("/")[2]))
    return {
        "name": name,
        "package": package,
        "module": file_name(quirk_id),
        "id": quirk_id,
        "flag": ModelFlag(flag).name,
        "contract": contract,
        "core": Version(version(BUILT_IN)).base_version,
    }


def _is_taken(package: str, name: str) -> bool:
    """The import name belongs to another package; an existing package of quirks may be made again."""
    own = {canonicalize_name(item.distribution) for item in discover()}
    return name == BUILT_IN or package in _TAKEN or (name not in own and INSTALLED.places(package) != [])


def _check_id(quirk_id: str, option: str, name: str) -> None:
    if problem := problem_of_id(quirk_id):
        raise UsageError(f"{option} {quirk_id!r}: {problem}")
    prefix, slash, _ = quirk_id.partition("/")
    if slash and prefix != name:
        raise UsageError(f"{option} {quirk_id!r}: what stands before the slash is the distribution's name, {name!r}")
    for item in discover():
        if item.name == quirk_id and (name == BUILT_IN or canonicalize_name(item.distribution) != name):
            other = "another name" if name == BUILT_IN else f"'{name}/{quirk_id}'"
            raise UsageError(f"{option} {quirk_id!r} is taken by {item.distribution} {item.version}; try {other}")


def _write(folder: Path, texts: Mapping[str, str], *, into_checkout: bool) -> None:
    if not into_checkout and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; name another one with --folder")
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _filled(template: str, words: Mapping[str, str]) -> str:
    text = (files("quirks_core") / "templates" / template).read_text(encoding="utf-8")
    return Template(text).substitute(words)


COMMAND = Command("make a package with a quirk and its tests", run_new, add_arguments)
