"""``quirks weights`` without a server: the picture of a run, and what is refused."""

from __future__ import annotations

import json

import pytest

LOST = "2 of 4 comparable tensors did not arrive"


@pytest.fixture
def run(tmp_path):
    """Writes what `LedgerCallback` writes of a run with two layers; the second never arrives."""
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib: pip install 'model-quirks[parity]'")

    def write(verdict):
        file = tmp_path / "updates.jsonl"
        names = [f"layers.{layer}.mlp.down_proj.weight" for layer in range(2)]
        rows = [{"step": 1, "arrived": 1, "changed_share": None, "norms": {}, "missing": [], "verdict": ""}]
        for step in (2, 3):
            norms = dict(zip(names, (1.0 / step, 0.01), strict=True))
            rows.append({"step": step, "arrived": 0.5, "changed_share": 0.5, "norms": norms, "missing": [], "verdict": ""})
            if verdict:
                rows[-1] |= {"missing": names[1:], "verdict": verdict}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    return write


@pytest.mark.parametrize(("verdict", "code"), [("", 0), (f"{LOST}: <b>layers.1</b>", 1)])
def test_the_updates_of_a_run_are_drawn_by_layer(quirks, run, tmp_path, verdict, code):
    outcome = quirks("weights", run(verdict), "--output", tmp_path / "pictures", "--json")

    assert outcome.code == code
    page, image = (tmp_path / "pictures" / name for name in ("updates.html", "updates.png"))
    assert outcome.json["files"] == [str(page), str(image)]
    assert [one["step"] for one in outcome.json["problems"]] == ([2, 3] if verdict else [])
    assert image.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.count("✗") == (3 if verdict else 1)  # the title explains the mark
    assert "layers.1" in text
    assert ("The policy arrived at every step." in text) == (not verdict)
    assert "<b>" not in text
    assert "var(--ink)" in text
    assert "<script" not in text


def test_what_is_no_file_of_a_run_is_an_error(quirks, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"loss": 1}\n')
    empty = tmp_path / "one.jsonl"
    empty.write_text('{"step": 1}\n')
    for file, words in (
        (other, "is no file of LedgerCallback"),
        (empty, "holds no update: two steps are needed"),
        (tmp_path / "none", "cannot be read: No such file or directory"),
    ):
        outcome = quirks("weights", file, "--output", tmp_path)
        assert outcome.code == 2
        assert words in " ".join(outcome.err.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["127.0.0.1:9"], "nothing answers at http://127.0.0.1:9"),
        (["4194304999"], "is no process on this machine"),
        (["1", "--checkpoint", "here"], "--checkpoint needs the server's address"),
        (["ftp://host"], "name one as http://host:8000"),
        ([__file__], "is a file: name the folder for its picture with --output"),
        (["a", "b", "--output", "here"], "--output takes one FILE"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(quirks, arguments, words):
    outcome = quirks("weights", *arguments)

    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())
