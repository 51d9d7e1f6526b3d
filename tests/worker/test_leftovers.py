"""What killed runs leave in shared memory and among temporary files, and what explains that an engine did not start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing import shared_memory as segments

import pytest

from worker.engine import failures, leftovers

#: An engine's driver as far as it matters: a run's folder, with the segments of a process below it, killed without warning.
_KILLED = """
import os, subprocess, sys
from quirks_core.base import private_folder
from worker.engine import leftovers

child = "from multiprocessing import resource_tracker, shared_memory; s = shared_memory.SharedMemory(create=True, size=99);" \\
    "resource_tracker.unregister(s._name, 'shared_memory'); print(s.name, flush=True); input()"
process = subprocess.Popen([sys.executable, "-c", child], stdin=-1, stdout=-1, text=True)
name = process.stdout.readline().strip()
folder = private_folder.make(sys.argv[1])
inner = folder / sys.argv[2] if sys.argv[2] else folder
inner.mkdir(exist_ok=True)
leftovers.record_shared_memory(inner, [process.pid])
os.utime(folder / ".owner", (1, 1))
print(folder, name, flush=True)
process.kill()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def killed(place):
    def run(prefix, inner=""):
        environment = {**os.environ, "TMPDIR": str(place)}
        command = [sys.executable, "-c", _KILLED, prefix, inner]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stdout.split()

    return run


@pytest.mark.parametrize(("prefix", "inner"), [("model-quirks-", ""), ("mqa-", "model-quirks-1")], ids=["run", "actor"])
def test_the_next_start_removes_what_a_killed_run_left(killed, place, prefix, inner):
    folder, segment = killed(prefix, inner)
    assert os.path.isdir(folder)  # noqa: PTH112
    assert (leftovers.PLACE / segment).exists()

    leftovers.collect()

    assert list(place.iterdir()) == []
    assert not (leftovers.PLACE / segment).exists()


def test_segments_that_were_not_recorded_are_left_alone(killed, place):
    other = segments.SharedMemory(create=True, size=99)
    try:
        killed("model-quirks-")

        leftovers.collect()

        assert (leftovers.PLACE / other.name).exists()
        assert list(place.iterdir()) == []
    finally:
        other.close()
        other.unlink()


def test_only_a_folder_that_vanished_is_named(place):
    assert failures.folder_problem(place) is None
    assert "model-quirks-x vanished meanwhile" in failures.folder_problem(place / "model-quirks-x")


def test_a_machine_without_a_temporary_folder_is_named(monkeypatch):
    """A machine without any folder for temporary files is named with the remedy."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)

    assert "No usable temporary directory found" in failures.full_disk()
    assert "set TMPDIR" in failures.full_disk()


def test_a_program_from_standard_input_is_named():
    look = "from worker.engine import failures; print(failures.unreadable_program())"
    said = [
        subprocess.run([sys.executable, *more], input=text, text=True, capture_output=True, check=True).stdout
        for more, text in (([], look), (["-c", look], ""))
    ]

    assert "<stdin> is no file: save the program in one" in said[0]
    assert said[1] == "None\n"
