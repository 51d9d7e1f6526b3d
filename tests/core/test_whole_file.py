"""Files that users name: no kind of file hangs a reader or fills its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quirks_core.base import whole_file
from quirks_core.base.errors import QuirksError
from quirks_core.cli.diff import read_plan
from quirks_core.configuration.yaml_file import read_yaml
from quirks_core.hook import receipts
from quirks_core.plugins.lock import Lock


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def test_no_more_than_the_limit_is_read(tmp_path):
    file = tmp_path / "file"
    file.write_text("12345")

    assert whole_file.read(file, 5) == b"12345"
    with pytest.raises(OSError, match="more than 0 MiB"):
        whole_file.read(file, 4)


def test_the_output_of_a_command_in_a_files_place_is_read():
    text = "import sys, time; time.sleep(0.2); print('a: 1')"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as command:
        assert whole_file.read(Path(f"/dev/fd/{command.stdout.fileno()}")) == b"a: 1\n"


@pytest.mark.parametrize("read", [read_yaml, Lock.read, lambda file: read_plan(str(file)), receipts.read, receipts.begin])
def test_a_fifo_without_a_writer_is_an_error_that_says_so(read, fifo):
    with pytest.raises(QuirksError, match=r"fifo.* is a FIFO.*; name a regular file"):
        read(fifo)


@pytest.mark.parametrize("read", [read_yaml, Lock.read, lambda file: read_plan(str(file)), receipts.read, receipts.begin])
@pytest.mark.parametrize("device", ["/dev/full", "/dev/zero"])
def test_an_endless_device_is_an_error(read, device):
    with pytest.raises(QuirksError, match=rf"{device}.*(has more than \d+ MiB|is a character device)"):
        read(Path(device))


def test_a_text_that_cannot_be_written_leaves_the_folder_as_it_was(tmp_path):
    (tmp_path / "file").write_text("before")

    with pytest.raises(UnicodeEncodeError):
        whole_file.write(tmp_path / "file", "\ud800")

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "before"}
