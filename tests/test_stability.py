"""What docs/stability.md promises: the table of public names is the one list of them."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from quirks_core.base.json_values import SCHEMA
from quirks_core.cli.main import make_parser
from quirks_core.facts.packages import NEWEST_READ, OLDEST_READ

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
#: The public names by module.
NAMES = {
    module: re.findall(r"`(\w+)`", names) for module, names in re.findall(r"^\| `([\w.]+)` \| (`.+) \|$", PAGE, re.MULTILINE)
}
IMPORT = re.compile(r"^ *from ((?:quirks_core|worker)[\w.]*) import (.+)$", re.MULTILINE)


@pytest.mark.parametrize("module", NAMES)
def test_a_public_name_is_there(module):
    home = import_module(module)

    assert {name for name in NAMES[module] if not hasattr(home, name)} == set()
    assert getattr(home, "__all__", NAMES[module]) == NAMES[module]


def test_what_pages_and_packages_of_others_import_is_public():
    """Parity's own page shows how thresholds are made, and says so; examples are part of this repository."""
    files = [
        file
        for pattern in ("README.md", "docs/*.md", "quirks_core/templates/*.template", "tests/downstream/*/src/**/*.py")
        for file in ROOT.glob(pattern)
        if file.name != "parity.md"
    ]
    used = {
        (module, name.strip())
        for file in files
        for module, names in IMPORT.findall(file.read_text(encoding="utf-8"))
        for name in names.partition("#")[0].strip("() ").split(",")
        if name.strip()
    }

    assert len(used) > 20
    assert {(module, name) for module, name in used if name not in NAMES.get(module, ())} == set()


def test_the_page_has_the_window_of_releases_and_the_schema():
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST_READ, NEWEST_READ))

    assert f"| {oldest} to {newest} |" in PAGE
    assert f"begin with a `schema`:\n{SCHEMA} today" in PAGE


@pytest.mark.parametrize("name", ["missing-quirk", "wrong-quirk"])
def test_a_template_asks_for_what_the_commands_print(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))

    fields = {item["id"]: item for item in form["body"]}
    assert fields["doctor"]["validations"]["required"]
    commands = re.findall(r"quirks (\w+)((?: ID)?) --json", str(form))
    assert {command for command, _ in commands} >= {"doctor"}
    for command, argument in commands:
        make_parser(command).parse_args([command, *(["some-quirk"] if argument else []), "--json"])


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert citation["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
