"""Functions that wait for a module: called once it was executed, also those that a call asks for, and never twice."""

from __future__ import annotations

import importlib
import sys

import pytest

from quirks_core.apply import imports
from quirks_core.apply.imports import when_imported


@pytest.fixture(autouse=True)
def own_finder(monkeypatch):
    """Lets nothing that another test waits for count."""
    monkeypatch.setattr(imports, "_finder", imports._Finder())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def test_what_waits_for_a_module_is_called_after_its_import(write_modules):
    write_modules({"fake_late.py": "VALUE = 3\n"})
    seen = []

    def second(module):
        seen.append(("second", module.VALUE))

    def first(module):
        seen.append(("first", module.VALUE))
        when_imported("fake_late", second)  # while the module is still being imported

    when_imported("fake_late", first)
    when_imported("fake_late", first)
    assert seen == []

    importlib.import_module("fake_late")

    assert seen == [("first", 3), ("second", 3)]
    when_imported("fake_late", second)
    assert seen[2:] == [("second", 3)]
    assert imports._finder not in sys.meta_path


def test_a_module_that_fails_to_import_keeps_them_waiting(write_modules):
    write_modules({"fake_fails.py": "import sys\nif not hasattr(sys, 'fake_ready'): raise ImportError('not yet')\n"})
    seen = []
    when_imported("fake_fails", seen.append)
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("fake_fails")
    assert seen == []

    sys.fake_ready = True
    try:
        module = importlib.import_module("fake_fails")
    finally:
        del sys.fake_ready

    assert seen == [module]
