"""What a terminal and a pipe get: foreign text cannot steer them, and lines fit or do not wrap."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from declarations import declared
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from quirks_core.base.errors import UsageError
from quirks_core.base.text import listed, printable
from quirks_core.reporting.terminal import Screen, line, lines

#: A window title, a link, cleared screen, 8-bit CSI, reversed writing, hidden letters, and a line as if it were ours.
EVIL = "a\x1b]0;x\x07\x1b]8;;https://e.example\x1b\\b\x1b[2J\x9b31m\u202etxt\u2066\u200b\U000e0041\r:x:[bold]\nerror: forged"
#: What none of it may leave in an output; the last is the line that would be taken for one of ours.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]|❌|^error: forged", re.M
)
PLUGIN = declared(
    "acme-evil",
    title=repr(EVIL),
    cost=repr(EVIL),
    match='purpose("rollout")',
    adjustments=f"""[
        Advise({EVIL!r}),
        Default("engine.tokenizer", {EVIL!r}, reason={EVIL!r}),
        Refuse({EVIL!r}, remedy={EVIL!r}, when=setting("engine.seed").one_of(666)),
    ]""",
)
RAISES = f"raise RuntimeError({EVIL!r})\n"


@pytest.fixture
def evil(install, model):
    """Installs plugins whose texts are hostile, and makes a model whose configuration is."""
    install("acme-evil", PLUGIN)
    install("acme-broken", RAISES)
    install("acme-verb", {"acme": "acme_verb:COMMAND"}, group="model_quirks.commands", acme_verb=RAISES)
    folder = model("qwen3")
    values = {"model_type": EVIL, "architectures": [EVIL], "num_experts": EVIL}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


COMMANDS = [
    ["plan"],
    ["plan", "--set", "engine.seed=666"],
    ["plan", "--set", f"engine.dtype={EVIL}"],
    ["explain", "acme-evil"],
    ["plan", "--vllm", "0.31,0.32"],
    ["show", "acme-broken"],
    ["show", EVIL],
    ["list"],
    ["doctor"],
    ["lock", "--output", f"{EVIL}/x"],
    ["--help"],
    ["acme"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: " ".join(words)[:30])
def test_foreign_text_steers_no_terminal_and_forges_no_line(quirks, evil, arguments):
    more = ["--model", evil] if arguments[0] in ("plan", "explain") else []

    outcome = quirks(*arguments, *more)

    assert UNSAFE.findall(outcome.out + outcome.err) == []


def test_what_went_past_our_functions_is_escaped_as_well(capsys):
    screen = Screen()
    table = Table(title=EVIL)
    table.add_row(EVIL, Text(EVIL))
    for thing in (EVIL, Text(EVIL), table):
        screen.print(thing)

    assert UNSAFE.sub("", capsys.readouterr().out.replace("error: forged", "")).count("\\x1b") >= 12


def test_letters_of_every_script_stay_what_they_are(capsys):
    text = "Größe 日本 شكرا क्‍ष 👩‍👩 :x: [b] \\["

    Screen().say(line(text))
    Screen().say(lines(text))

    assert capsys.readouterr().out == f"{text}\n{text}\n"


@given(st.text(st.sampled_from("a/b\\[]#:x")), st.sampled_from(["{}", "[bold]{}[/]", "{}[dim]x[/]", "({})"]))
def test_markup_characters_in_a_text_are_shown_as_they_are(text, around):
    shown = Screen().render_str(around.format(line(text)))

    assert shown.plain == re.sub(r"\[(bold|dim|/)\]", "", around).format(text)


def test_a_message_names_the_first_and_counts_the_others():
    assert [listed("abc", most) for most in (2, 3)] == ["a, b and 1 more", "a, b, c"]


def test_a_pipe_gets_every_line_whole(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    text = "word " * 1000

    Screen().say(text)
    Screen().entries([("name", text)])

    assert [len(row) for row in capsys.readouterr().out.splitlines()] == [4999, 5007]


def test_rows_fit_a_terminal_of_any_width_without_breaking_words(quirks, model, monkeypatch):
    everything = {}
    for width in (40, 60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        outcomes = [quirks(*words) for words in (["list"], ["plan", "--model", model("gemma3_text")], ["show", "cp-gemma3"])]
        everything[width] = " ".join(outcome.out for outcome in outcomes).split()
        rows = [row for outcome in outcomes for row in outcome.out.splitlines()]
        assert [row for row in rows if len(row) > width and len(row.split()) > 2] == []
        assert [row for row in rows if row != row.rstrip()] == []

    assert everything[40] == everything[60] == everything[80]


def test_a_table_of_many_versions_keeps_its_names_in_every_part(quirks, model, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    versions = [f"0.{minor}" for minor in range(20, 32)]

    shown = quirks("plan", "--model", model(), "--vllm", ",".join(versions)).out

    headings = [row.split()[1:] for row in shown.splitlines() if row.startswith("quirk ")]
    assert [version for heading in headings for version in heading] == versions
    assert len([row for row in shown.splitlines() if row.startswith("async-rollout-timeout ")]) == len(headings) > 1
    assert max(map(len, shown.partition("active: ")[0].splitlines())) <= 80


def _on_a_terminal(*arguments: str, **variables: str) -> str:
    """What ``quirks`` writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "TERM")}
    command = [sys.executable, "-m", "quirks_core.cli", *arguments]
    with subprocess.Popen(command, env={**environ, "TERM": "xterm", **variables}, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        written = b""
        try:
            while block := os.read(ours, 4096):
                written += block
        except OSError:  # how Linux says that nobody writes any more
            pass
    os.close(ours)
    return written.decode()


def test_a_terminal_gets_colours_unless_it_wants_none(model: Callable[[str], Path]) -> None:
    plan = ("plan", "--model", str(model("gemma3_text")))

    plain = _on_a_terminal(*plan, NO_COLOR="1")

    assert "\x1b[32min force" in _on_a_terminal(*plan)
    assert "\x1b" not in plain
    assert max(len(row) for row in plain.split("\r\n") if " " in row.strip()) <= 80


@pytest.mark.parametrize("command", [["plan"], ["show", "acme-evil"]], ids=lambda words: words[0])
def test_json_has_foreign_text_whole_and_escaped(quirks, evil, command):
    found = quirks(*command, *(["--model", evil] if command[0] == "plan" else []), "--json")

    titles = [verdict["title"] for verdict in found.json.get("verdicts", [found.json]) if verdict["id"] == "acme-evil"]
    assert (titles, UNSAFE.findall(found.out)) == ([EVIL], [])


def test_an_error_that_a_trainer_prints_is_as_harmless():
    assert str(UsageError(EVIL)) == printable(EVIL)
    assert UNSAFE.sub("", printable(EVIL)).count("\\x1b") == EVIL.count("\x1b")


def test_no_command_writes_foreign_text_past_the_screen():
    """The console and the escaping of markup are taken from one module."""
    root = Path(__file__).resolve().parents[2]
    sources = [file for folder in ("quirks_core", "worker") for file in (root / folder).rglob("*.py")]

    wrong = [
        file.name for file in sources if re.search(r"rich\.(markup|console|table) import", file.read_text(encoding="utf-8"))
    ]

    assert wrong == ["terminal.py"]
