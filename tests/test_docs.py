"""The documentation says what the code does: links lead somewhere, blocks run, every name is there."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import shlex
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lookup_pages
import pages
import pytest
import yaml
from installations import environment
from patience import HUNG_S

from quirks_core import Patch, Quirk, Severity, model_type, report
from quirks_core.cli.command import find_commands
from quirks_core.cli.main import make_parser
from quirks_core.configuration.config import GenerationConfig
from quirks_core.declaration.trace import Answer, Leaf
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.receipt import Acknowledgement, Effect, Receipt
from quirks_core.plan.records import Contributor, Plan, PlannedAdjustment, PlannedPatch, Refusal, State, Status, Verdict
from quirks_core.plugins import hookspecs, validate
from quirks_core.testing import plugin
from quirks_plugins import fixtures as engine_fixtures
from worker.lab.kit.checkpoints import KINDS
from worker.lab.kit.lab import Generated, Lab, Outcome
from worker.lab.kit.proof import Conclusion

_ROOT = Path(__file__).resolve().parent.parent
_DOCS = _ROOT / "docs"
_PAGES = sorted([_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *_DOCS.glob("*.md"), *_DOCS.glob("results/*.md")])
_FENCE = re.compile(r"^```(?P<language>\w*) *(?P<mark>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
_ANY_LINES = "…"
_QUIRKS = [name.removesuffix(".md") for name in pages.quirk_pages()]


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    mark: str
    text: str
    before: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(_ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """It is not marked as one that cannot."""
        return self.mark != "notest"


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _blocks(*languages: str, page: Path | None = None) -> list[Block]:
    found = []
    for name in [page] if page else _PAGES:
        text = _text(name)
        for match in _FENCE.finditer(text):
            if match["language"] in languages:
                before = text[: match.start()]
                found.append(Block(name, before.count("\n") + 1, match["language"], match["mark"], match["text"], before))
    return found


def _commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the output that the page shows."""
    command, shown = "", []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        elif command.endswith("\\"):
            command = command[:-1] + line
        else:
            shown.append(line)
    if command:
        yield command, shown


def _words(page: Path) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", _FENCE.sub("", _text(page))))


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub, and MyST with it, gives the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", _text(page)), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).strip().replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def _ids(blocks: list[Block]) -> dict[str, Any]:
    return {"argvalues": blocks, "ids": [str(block) for block in blocks]}


def test_the_generated_pages_are_up_to_date():
    assert {name: _text(_DOCS / name) for name in pages.committed_pages()} == pages.committed_pages(), "run: make docs"


def test_the_pages_do_not_depend_on_what_is_installed(monkeypatch):
    before = pages.committed_pages(), pages.quirk_pages()
    for name in ("quirks_core.facts.packages.installed_version", "quirks_core.source.source_tree.SourceTree.module_source"):
        monkeypatch.setattr(name, lambda *_: None)
    monkeypatch.setenv("COLUMNS", "40")

    assert (pages.committed_pages(), pages.quirk_pages()) == before


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_link_leads_somewhere(page):
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", _text(page)))
    wrong = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            wrong.append(link)

    assert not wrong


def test_the_documentation_stays_within_its_budget():
    """Say a fact once, and shorten another page for a new one."""
    by_hand = [page.name for page in _DOCS.glob("*.md") if page.name not in pages.committed_pages()]
    every = [
        _ROOT / "README.md",
        _ROOT / "CHANGELOG.md",
        *_DOCS.glob("*.md"),
        *_DOCS.glob("results/*.md"),
        *_DOCS.glob("upstream/*.md"),
    ]

    assert len(by_hand) <= 21
    assert sum(len(_text(page).split()) for page in every) <= 60_000
    assert len(_text(_ROOT / "README.md").splitlines()) <= 100


def test_the_source_stays_within_its_budget():
    """Name what goes for what you add."""
    most = {"quirks_core": 18_500, "quirks_plugins": 11_500, "worker": 12_050, "worker/lab": 7_500, "tests": 34_000}
    lines = {room: sum(len(_text(file).splitlines()) for file in (_ROOT / room).rglob("*.py")) for room in most}
    lines["worker"] -= lines["worker/lab"]

    assert {room: count for room, count in lines.items() if count > most[room]} == {}


def test_every_page_that_the_source_names_exists():
    folders = ("quirks_core", "quirks_plugins", "worker", "scripts", "examples", "benchmarks", "tests", ".github")
    files = [
        file for folder in folders for file in (_ROOT / folder).rglob("*") if file.suffix in (".py", ".sh", ".yaml", ".yml")
    ]
    named = {page: file for file in files for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", _text(file))}

    assert named
    assert {page: file for page, file in named.items() if not (_ROOT / page).is_file()} == {}


def test_every_page_is_reached_from_the_index():
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", _text(_DOCS / "index.md")))
    pages = [*_DOCS.glob("*.md"), *_DOCS.glob("results/*.md")]

    assert linked | {"index.md"} == {page.relative_to(_DOCS).as_posix() for page in pages}


def test_every_hook_is_a_heading_with_its_exact_signature():
    headings = re.findall(r"^### `(quirks_.+)`$", _text(_DOCS / "writing-a-quirk.md"), re.MULTILINE)

    hooks = [value for name, value in vars(hookspecs).items() if name.startswith("quirks_") and inspect.isfunction(value)]
    assert len(hooks) >= 3
    assert headings == [f"{hook.__name__}{inspect.signature(hook)}".replace("'", "") for hook in hooks]


def test_the_page_of_the_command_line_has_every_option():
    text = lookup_pages.command_line(make_parser())
    commands = make_parser()._subparsers._group_actions[0].choices

    assert list(find_commands()) == re.findall(r"^## quirks ([\w-]+)$", text, re.MULTILINE)
    for name, parser in commands.items():
        section = text.partition(f"## quirks {name}\n")[2].partition("\n## ")[0]
        words = [word for action in parser._actions for word in action.option_strings or [action.metavar or action.dest]]
        assert not [word for word in words if word not in section], name


def test_every_variable_of_ours_is_on_the_page_on_production():
    sources = [file for folder in ("quirks_core", "quirks_plugins", "worker") for file in (_ROOT / folder).rglob("*.py")]
    used = {name for file in sources for name in re.findall(r"\bMODEL_QUIRKS_[A-Z_]*[A-Z]\b", _text(file))}

    assert len(used) >= 6
    assert used <= set(re.findall(r"MODEL_QUIRKS_[A-Z_]+", _text(_DOCS / "production.md")))


_RECORDS = (Plan, PlannedAdjustment, Contributor, Refusal, PlannedPatch, Receipt, Acknowledgement, Effect)
_KEYS = {key for record in _RECORDS for key in record.model_fields} | {field.name for field in dataclasses.fields(Verdict)}
_OUTCOMES = {field.name for record in (Outcome, Generated) for field in dataclasses.fields(record)}
_FIXTURES = {**vars(plugin), **vars(engine_fixtures)}.items()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("reference.md", _KEYS | set(Leaf._fields)),
        ("reference.md", {word for words in (State, Status, Severity, Answer, Conclusion) for word in words}),
        ("writing-a-quirk.md", {name for name, one in _FIXTURES if type(one).__name__ == "FixtureFunctionDefinition"}),
        ("kit.md", {name for name in (*vars(Lab), *KINDS, *_OUTCOMES) if not name.startswith("_")}),
    ],
    ids=["keys of records", "words of a plan", "fixtures", "the kit"],
)
def test_every_public_name_is_on_its_page(page, names):
    words = {word.partition("(")[0].removeprefix("await ") for word in _words(_DOCS / page)}

    assert len(names) >= 6
    assert names <= words


def test_every_patch_of_the_page_passes_validation(tmp_path, monkeypatch):
    page = _DOCS / "writing-a-quirk.md"
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in _blocks("python", page=page):
        if name := re.match(r"# ([\w/]+\.py)\n", block.text):
            file = tmp_path / name[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        if block.runs:
            exec(compile(block.text, str(block), "exec"), namespace)  # noqa: S102  # our own pages
    monkeypatch.syspath_prepend(tmp_path)
    patches = [value for value in namespace.values() if isinstance(value, Patch)]
    about = {"title": "-", "flag": "acme-quirks:log", "match": model_type("x"), "severity": Severity.NOISE}

    assert len(patches) == 3
    for patch in patches:
        quirk = Quirk(id="acme-quirks/log", adjustments=patch, references=report("https://example.org"), **about)
        loaded = Loaded(quirk, "acme-quirks", "1.0", quirk.id)
        assert not [*validate.reasons(loaded), *validate.patches(loaded), *validate.slots(loaded)]


def test_every_quirk_is_among_the_symptoms():
    symptoms = _text(_DOCS / "symptoms.md")

    assert not [name for name in _QUIRKS if f"[`{name}`](../quirks_plugins/" not in symptoms]


@pytest.mark.parametrize("block", **_ids([block for block in _blocks("python", "console") if block.mark]))
def test_a_block_that_is_not_run_says_why(block):
    assert block.mark == "notest"
    assert re.search(r"<!-- .+ -->\n$", block.before), "put the reason into a comment on the line above"


@pytest.mark.parametrize("page", sorted({block.page for block in _blocks("python")}), ids=lambda page: page.name)
def test_every_python_block_runs(page):
    """Of a block that cannot run, the imports."""
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem}"}
    for block in _blocks("python", page=page):
        tree = compile(block.text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        code = tree if block.runs else ast.Module(imports, [])
        exec(compile(code, str(block), "exec"), namespace if block.runs else {})  # noqa: S102  # our own pages


@pytest.mark.parametrize("block", **_ids(_blocks("yaml")))
def test_every_configuration_is_one(block):
    GenerationConfig.parse(yaml.safe_load(block.text))


@pytest.mark.parametrize("block", **_ids(_blocks("console")))
def test_every_command_line_parses(block):
    for command, _ in _commands(block):
        words = shlex.split(command, comments=True)
        words = words[: next((index for index, word in enumerate(words) if word in ("|", ">", "&&")), len(words))]
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words[0] == "quirks":
            make_parser().parse_args(words[1:])


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """An environment of its own, in an empty folder, as a reader has it; it sees what is installed here."""
    folder = tmp_path / "work"
    folder.mkdir()
    python = environment(tmp_path / "venv", sysconfig.get_path("purelib"), str(_ROOT))
    for name, module in (("quirks", "quirks_core.cli"), ("pip", "pip"), ("pytest", "pytest")):
        script = python.with_name(name)
        script.write_text(f'#!/bin/sh\nexec "{python}" -P -m {module} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODEL_QUIRKS_", "PIP_", "VLLM_"))}
    # Nothing is fetched: what the pages install is built with the tools that are here.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    variables = {**kept, **offline, "PATH": f"{python.parent}:{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=HUNG_S,
        )

    run.folder = folder  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("page", sorted({block.page for block in _blocks("console")}), ids=lambda page: page.name)
def test_every_command_prints_what_the_page_shows(page, shell):
    for block in _blocks("console", "python", "toml", page=page):
        if not block.runs:
            continue
        if block.language != "console":
            if name := re.match(r"# ([\w.]+\.(?:py|toml))\n", block.text):
                (shell.folder / name[1]).write_text(block.text, encoding="utf-8")
            continue
        for command, shown in _commands(block):
            done = shell(command)
            printed = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
            # 1 means findings, and pages show some; what is no command of ours must work.
            good = (0, 1) if re.match(r"(\w+=\S+ )*quirks ", command) else (0,)
            assert done.returncode in good, f"{block}: {command}\n{done.stdout}{done.stderr}"
            assert "Traceback" not in done.stderr, f"{block}: {command}\n{done.stderr}"
            assert not shown or _agree(shown, printed), f"{block}: {command}\n" + "\n".join(printed)


def _agree(shown: list[str], printed: list[str]) -> bool:
    pattern = "".join(r"(?:.*\n)*" if line == _ANY_LINES else re.escape(line.rstrip()) + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None
