"""The documentation says what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from quirks_core.cli.main import main

_ROOT = Path(__file__).resolve().parent.parent
_PAGES = sorted([_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *(_ROOT / "docs").glob("*.md")])


def test_the_generated_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, "scripts/catalogue.py", "--check"], cwd=_ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))

    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_quirk_is_in_the_readmes_catalogue_and_the_changelog(capsys):
    main(["list", "--json"])
    ids = re.findall(r'"id": "([^"]+)"', capsys.readouterr().out)

    changelog = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert ids
    assert not [name for name in ids if f"`{name}`" not in changelog]


@pytest.mark.parametrize("command", ["list", "show", "plan", "explain", "doctor", "generate", "demo"])
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])

    assert caught.value.code == 0
    assert "--json" in capsys.readouterr().out
