"""Releases and caches that are broken or hostile: one sentence and exit code 5, never a traceback, never a verdict."""

from __future__ import annotations

import zipfile

import pytest

from quirks_core.upgrade.release import find_release

from .conftest import SOURCE


def _encrypted(path):
    data = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags of a member, and of its entry in the list
        place = -1
        while (place := data.find(signature, place + 1)) >= 0:
            data[place + at] |= 1
    path.write_bytes(data)


def _corrupt_lzma(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, text in SOURCE.items():
            archive.writestr(name, text + "# " + "x" * 500)
    data = path.read_bytes()
    place = data.index(b"arg_utils.py") + 24
    path.write_bytes(data[:place] + b"\xff" * 12 + data[place + 12 :])


@pytest.fixture
def upgrade_to(quirks, checkpoint, cache):  # noqa: ARG001 - a cache of the test's own
    """Runs the command for a release by its path."""

    def run(path, *more):
        return quirks("upgrade", "--to", path, "--read-only", "--model", checkpoint("gemma3"), *more)

    return run


@pytest.mark.parametrize("spoil", [_encrypted, _corrupt_lzma])
def test_an_archive_that_cannot_be_unpacked_is_an_error_of_one_sentence(upgrade_to, wheel, cache, spoil):
    path = wheel()
    spoil(path)

    outcome = upgrade_to(path)

    assert outcome.code == 5
    assert "is no complete wheel or source archive" in " ".join(outcome.err.split())
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("marker", ['extra ~= "q"', 'python_version ~= "q" and extra == "a"'])
def test_a_marker_that_makes_no_sense_ends_nothing(upgrade_to, tree, marker):
    metadata = f"Name: vllm\nVersion: 0.32.5\nRequires-Dist: foo; {marker}\n"

    assert upgrade_to(tree("fork", {"PKG-INFO": metadata})).code == 2


@pytest.mark.parametrize("expression", ["+".join(["1"] * 30000), "-" * 20000 + "1"])
def test_source_that_the_parser_of_python_gives_up_on_is_no_traceback(upgrade_to, wheel, expression):
    files = {**SOURCE, "vllm/engine/arg_utils.py": f"class EngineArgs:\n    model: str = {expression}\n"}

    outcome = upgrade_to(wheel(files=files))

    assert outcome.code == 2
    assert "has no vllm.engine.arg_utils that could be read" in " ".join(outcome.out.split())


def test_a_foreign_folder_of_the_cache_is_passed_over(serve, wheel, cache):
    (cache / "vllm-0.30.bak").mkdir(parents=True)

    assert find_release("0.30", index=serve(wheel()), prefer="vllm").version == "0.30.0"


def test_an_unexpected_failure_is_an_error_of_one_sentence(upgrade_to, wheel, monkeypatch):
    monkeypatch.setattr("quirks_core.upgrade.report.Upgrade.compare", lambda *_: {}["nothing"])

    outcome = upgrade_to(wheel())

    assert outcome.code == 5
    assert "the comparison failed" in outcome.err


def test_an_unknown_option_is_a_usage_error_of_this_command(quirks):
    assert quirks("upgrade", "--to", "0.31", "--no-such-option").code == 4
    assert quirks("plan", "--no-such-option").code == 2
