"""The file of receipts: written by several processes, free of what earlier runs left, and never another's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from quirks_core.base.errors import ReceiptError, UsageError
from quirks_core.hook import receipts
from quirks_core.plan.receipt import Acknowledgement, Receipt

FROM = {"digest": "d" * 64, "host": socket.gethostname()}


def acknowledged(pid=None):
    return Acknowledgement(pid=pid or os.getpid(), process="EngineCore", **FROM)


def engine(pid=None):
    return Receipt(processes=(acknowledged(pid),), **FROM)


def test_what_processes_add_is_read_back(tmp_path):
    file = tmp_path / "receipts.json"
    receipts.begin(file)
    receipts.add(file, acknowledged())
    receipts.add(file, acknowledged())
    receipts.add(file, engine())
    receipts.add(file, "no room in \udcff")  # a folder's name may be no UTF-8

    found = receipts.read(file)

    assert (found.engines, found.front_ends, found.problems) == ((engine(),), (acknowledged(),), ("no room in \\udcff",))


def test_a_new_run_takes_out_what_ended_processes_left(tmp_path):
    file, child = tmp_path / "receipts.json", subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    receipts.add(file, engine(child.pid))
    receipts.add(file, engine())
    receipts.add(file, acknowledged(child.pid))
    receipts.add(file, "no room")

    receipts.begin(file, keep_problems=True)
    assert receipts.read(file).problems == ("no room",)
    receipts.begin(file)

    found = receipts.read(file)
    assert (found.engines, found.front_ends, found.problems) == ((engine(),), (), ())
    receipts.begin(file, only_new=True)
    assert receipts.read(file) == receipts.Receipts()


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    file = tmp_path / "receipts.json"
    text = "import sys; from pathlib import Path; from quirks_core.hook import receipts\n"
    text += "for n in range(20): receipts.add(Path(sys.argv[1]), f'{sys.argv[2]}-{n}')"
    children = [subprocess.Popen([sys.executable, "-c", text, str(file), str(one)]) for one in range(3)]

    assert [child.wait() for child in children] == [0, 0, 0]
    assert len(set(receipts.read(file).problems)) == 60


def test_a_file_of_somebody_elses_is_left_alone(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("dear diary")

    with pytest.raises(UsageError, match="holds no receipts; name another one"):
        receipts.begin(file)
    with pytest.raises(ReceiptError, match="holds no receipts"):
        receipts.read(file)

    assert file.read_text() == "dear diary"
