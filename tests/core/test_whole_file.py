"""Files that are written whole or not at all."""

from __future__ import annotations

import pytest

from quirks_core.base import whole_file


def test_a_text_that_cannot_be_written_changes_nothing(tmp_path):
    (tmp_path / "file").write_text("before")

    with pytest.raises(UnicodeEncodeError):
        whole_file.write(tmp_path / "file", "\ud800")

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "before"}
