"""Static reading of installed packages: nothing is imported, and a source is found wherever it is defined; fingerprints."""

from __future__ import annotations

import ast
import hashlib
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from quirks_core.facts.installation import needs
from quirks_core.source.source_tree import Missing, parsing
from quirks_core.source.vllm_source import INSTALLED
from quirks_core.upgrade.monkey_patches import read_patches
from quirks_core.upgrade.release import read_requirements

LOUD = "raise RuntimeError('a module must not be imported to be read')\n"
MODULE = """
import functools
import os.path as where
from json import loads as read


@functools.cache
@staticmethod
def decorated(a):
    return a


class Outer:
    size: int

    def method(self):
        # a comment counts
        return 1

    class Inner:
        async def deep(self):
            return 3


class Child(Outer):
    pass
"""
HOME = "fake_read.sub.module"


@pytest.fixture(autouse=True)
def fake_package(write_modules):
    """A package whose every module raises when it is imported."""
    write_modules({"fake_read/__init__.py": LOUD, "fake_read/sub/__init__.py": LOUD, "fake_read/sub/module.py": LOUD + MODULE})


def test_the_source_of_a_module_is_the_text_of_its_file():
    absent = ("fake_read.nothing", f"{HOME}.deeper", "no_such_package", "no_such.module", "sys")

    assert [INSTALLED.module_source(name) for name in ("fake_read", "fake_read.sub", *absent)] == [LOUD, LOUD, *[None] * 5]


def test_the_source_of_an_attribute_is_found_without_an_import():
    found = {
        "Outer.method": "def method(self):\n    # a comment counts\n    return 1",
        "Outer.Inner.deep": "async def deep(self):\n    return 3",
        "Outer.size": "size: int",
        "Child": "class Child(Outer):\n    pass",
        "decorated": "@functools.cache\n@staticmethod\ndef decorated(a):\n    return a",
    }
    inherited_or_imported = ("Child.method", "functools", "read")
    absent = ("nothing", "Outer.nothing", "Nothing.method", "decorated.", "Outer..method", *inherited_or_imported)

    assert {path: INSTALLED.attribute_source(f"{HOME}:{path}") for path in found} == found
    assert [path for path in absent if INSTALLED.attribute_source(f"{HOME}:{path}") is not None] == []
    assert [name for name in sys.modules if name.startswith("fake_read")] == []


@pytest.mark.parametrize(
    "reads",
    [
        lambda: INSTALLED.arguments.annotated_type(ast.Constant("int | None"), HOME),
        lambda: read_patches("import vllm", "patches.py"),
        lambda: needs(ModuleNotFoundError(name="no_such_package"), engine=False),
        lambda: list(read_requirements(['torch; python_version > "3.9"'])),
    ],
)
def test_nothing_is_parsed_without_the_lock(monkeypatch, reads):
    """A garbage collection of one thread would meet another's parse."""
    parse, is_free = ast.parse, []

    def watched(*args, **more):
        with ThreadPoolExecutor(1) as pool:
            is_free.append(pool.submit(lambda: parsing.acquire(blocking=False) and not parsing.release()).result())
        return parse(*args, **more)

    monkeypatch.setattr(ast, "parse", watched)
    reads()

    assert set(is_free) == {False}


def test_a_class_that_extends_one_of_its_name_ends_the_search(write_modules):
    write_modules({"fake_same.py": "class A(A):\n    pass\n"})

    assert INSTALLED.resolve("fake_same.A.forward") == Missing("fake_same has no A.forward", INSTALLED.resolve("fake_same.A"))


@pytest.mark.parametrize(
    "module",
    [
        "def f():\n    return 2\n\ndef f():\n    return 1\n",  # the last of two counts
        "def f():\n    return 1\n\nf = print(f)\n",  # and a definition before an assignment
        "try:\n    import fast\nexcept ImportError:\n    def f():\n        return 1\n",
        "try:\n    def f():\n        return 1\nexcept ImportError:\n    def f():\n        return 2\n",
    ],
)
def test_the_definition_that_python_keeps_is_found(write_modules, module):
    write_modules({"fake_read/branches.py": module})

    assert INSTALLED.attribute_source("fake_read.branches:f") == "def f():\n    return 1"


# ---- fingerprints follow the text of a source and nothing else

TARGET = "fake_text:function"
SOURCE = "def function():\n    first = 1\n    second = 2\n    return first + second\n"


@pytest.fixture
def write(write_modules):
    """Installs a module of that text."""
    return lambda text: write_modules({"fake_text.py": text})


def test_a_fingerprint_begins_the_sha256_of_the_text(write):
    def of(text):
        write(text)
        return INSTALLED.fingerprint(TARGET)

    before = of(SOURCE)
    changes = (("second = 2", "second = 3"), ("second = 2", "second = 2  # a comment"), ("()", "(argument)"))

    assert before == hashlib.sha256(SOURCE.rstrip().encode()).hexdigest()[:12]
    assert [of(f"x = 1\n\n\n{SOURCE}"), of(f"if True:\n{textwrap.indent(SOURCE, '    ')}")] == [before] * 2
    assert before not in [of(SOURCE.replace(*change)) for change in changes]
