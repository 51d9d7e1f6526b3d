"""Static reading of installed packages: nothing is imported, and a source is found wherever it is defined."""

from __future__ import annotations

import sys

import pytest

from quirks_core.source.vllm_source import INSTALLED, VllmSource

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


def test_a_file_that_is_no_python_of_ours_raises_nothing(write_modules):
    write_modules({"fake_odd.py": "def f(:\n"})

    assert INSTALLED.attribute_source("fake_odd:f") is None


def test_an_imported_name_is_reported_with_where_it_comes_from():
    origins = {
        "read": ("json", "loads"),
        "functools": ("functools", ""),
        "where": ("os.path", ""),
        "loads": None,
        "Outer": None,
    }

    assert {name: INSTALLED.imported_from(HOME, name) for name in origins} == origins


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


def test_the_variables_that_an_engine_reads_are_found(write_modules):
    envs = 'environment_variables = {\n    "VLLM_PORT": lambda: 2,\n}\n'
    elsewhere = 'import os\n\nvalue = os.environ.get("VLLM_ELSEWHERE")\n'
    write_modules({"vllm/__init__.py": LOUD})
    assert INSTALLED.unread_by_engine([]) is None

    write_modules({"vllm/envs.py": envs, "vllm/deep/down.py": elsewhere})

    assert INSTALLED.unread_by_engine(["VLLM_USE_V1", "VLLM_PORT", "VLLM_ELSEWHERE"]) == ("VLLM_USE_V1",)


def test_two_sources_of_vllm_are_read_side_by_side(tmp_path, write_modules):
    """Each has its own vLLM, whatever was read before; other packages are the installed ones."""
    code = "class EngineArgs:\n    seed: int = {}\n"
    write_modules({"vllm/__init__.py": "", "vllm/engine/arg_utils.py": code.format(0)})
    for number in (1, 2):
        module = tmp_path / f"release-{number}" / "engine" / "arg_utils.py"
        module.parent.mkdir(parents=True)
        module.write_text(code.format(number), encoding="utf-8")
    found = [INSTALLED, VllmSource(tmp_path / "release-1"), VllmSource(tmp_path / "release-2")]
    reads = [lambda one: one.arguments.find("seed").default, lambda one: one.fingerprint("vllm.engine.arg_utils:EngineArgs")]

    seeds, fingerprints = [[read(one) for one in (*found, *found)] for read in reads]

    assert seeds == [0, 1, 2] * 2
    assert (len(set(fingerprints)), fingerprints[:3]) == (3, fingerprints[3:])
    assert {one.module_source(HOME) for one in found} == {LOUD + MODULE}
