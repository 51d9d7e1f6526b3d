"""Temporary folders: private, and removed by the next run after their owner's. Files are written whole or not at all."""

from __future__ import annotations

import tempfile

import pytest
from programs import run_python

from quirks_core.base import private_folder, whole_file
from quirks_core.base.errors import QuirksError


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    """Temporary folders are made, and looked for, in that of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_whose_owner_was_killed_is_removed(tmp_path):
    made = f"private_folder.make('acme-', {str(tmp_path)!r})"
    run_python("-c", f"import os; from quirks_core.base import private_folder; {made}; os.kill(os.getpid(), 9)")
    (folder,) = tmp_path.iterdir()

    private_folder.remove_abandoned(["other-"])
    assert folder.exists()
    private_folder.remove_abandoned(["acme-"])
    assert not folder.exists()


def test_a_folder_whose_owner_is_not_known_is_left_alone(tmp_path):
    (tmp_path / "acme-by-hand").mkdir()

    private_folder.remove_abandoned(["acme-"])
    assert (tmp_path / "acme-by-hand").is_dir()


def test_a_folder_is_locked_before_others_can_see_its_lock(tmp_path, monkeypatch):
    lock = private_folder.fcntl.flock

    def look_and_lock(*arguments):
        private_folder.remove_abandoned(["acme-"])
        lock(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(private_folder.fcntl, "flock", look_and_lock)
        folder = private_folder.make("acme-", tmp_path)

    private_folder.remove_abandoned(["acme-"])
    assert folder.exists()
    private_folder.remove(folder)


def test_a_temporary_folder_is_private_until_it_is_removed(tmp_path):
    with private_folder.temporary("acme-") as folder:
        assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)

    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_folder_can_be_made_is_named(tmp_path):
    with pytest.raises(QuirksError, match=r"temporary folder in .*none: .*No such file or directory.* set TMPDIR"):
        private_folder.make("acme-", tmp_path / "none")


def test_a_text_that_cannot_be_written_changes_nothing(tmp_path):
    (tmp_path / "file").write_text("before")

    with pytest.raises(UnicodeEncodeError):
        whole_file.write(tmp_path / "file", "\ud800")

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "before"}
