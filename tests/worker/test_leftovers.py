"""What killed runs leave in shared memory and among temporary files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing import shared_memory as segments

import pytest

from worker.engine import leftovers

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
