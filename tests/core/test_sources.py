"""Static reading of installed packages: nothing is imported, and a fingerprint follows the text."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import pytest

from quirks_core import ABSENT, sources
from quirks_core.fingerprints import fingerprint

WriteModules = Callable[[dict[str, str]], None]

LOUD = "raise RuntimeError('a module must not be imported to be read')\n"
MODULE = """
import functools


@functools.cache
@staticmethod
def decorated(a):
    return a


class Outer:
    def method(self):
        # a comment counts
        return 1

    async def coroutine(self):
        return 2

    class Inner:
        def deep(self):
            return 3


class Child(Outer):
    pass
"""


@pytest.fixture(autouse=True)
def fake_package(write_modules: WriteModules) -> None:
    """A package whose every module raises when it is imported."""
    write_modules({"fake_read/__init__.py": LOUD, "fake_read/sub/__init__.py": LOUD, "fake_read/sub/module.py": LOUD + MODULE})


def test_reading_imports_nothing() -> None:
    assert sources.attribute_source("fake_read.sub.module:Outer.method") is not None

    assert [name for name in sys.modules if name.startswith("fake_read")] == []


@pytest.mark.parametrize(("module", "text"), [("fake_read", LOUD), ("fake_read.sub", LOUD)])
def test_a_package_is_read_from_its_init_file(module: str, text: str) -> None:
    assert sources.module_source(module) == text


@pytest.mark.parametrize("module", ["fake_read.nothing", "fake_read.sub.module.deeper", "no_such_package", "no_such.module"])
def test_a_missing_module_has_no_source(module: str) -> None:
    assert sources.module_source(module) is None


def test_a_module_without_a_package_is_read_too(write_modules: WriteModules) -> None:
    write_modules({"fake_single.py": "def f():\n    return 1\n"})

    assert sources.attribute_source("fake_single:f") == "def f():\n    return 1"
    assert sources.module_source("fake_single.deeper") is None


def test_a_module_that_is_not_python_has_no_source() -> None:
    assert sources.module_source("sys") is None


def test_an_attribute_is_given_without_indentation() -> None:
    expected = "def method(self):\n    # a comment counts\n    return 1"

    assert sources.attribute_source("fake_read.sub.module:Outer.method") == expected


def test_decorators_belong_to_the_source() -> None:
    found = sources.attribute_source("fake_read.sub.module:decorated")

    assert found == "@functools.cache\n@staticmethod\ndef decorated(a):\n    return a"


@pytest.mark.parametrize("path", ["Outer", "Outer.coroutine", "Outer.Inner", "Outer.Inner.deep"])
def test_classes_coroutines_and_nested_classes_are_found(path: str) -> None:
    assert fingerprint(f"fake_read.sub.module:{path}") != ABSENT


@pytest.mark.parametrize(
    "target",
    [
        "fake_read.sub.module:nothing",
        "fake_read.sub.module:Outer.nothing",
        "fake_read.sub.module:functools",
    ],
)
def test_what_its_module_or_class_does_not_define_is_absent(target: str) -> None:
    assert fingerprint(target) == ABSENT


@pytest.mark.parametrize(
    "target",
    ["fake_read.sub.module:Nothing.method", "fake_read.nothing:Outer", "no_such_package.module:Outer"],
)
def test_what_has_no_module_or_class_to_be_added_to_is_not_absent_but_homeless(target: str) -> None:
    assert fingerprint(target) == "homeless"


def test_an_inherited_attribute_is_absent_from_the_child() -> None:
    assert fingerprint("fake_read.sub.module:Child.method") == ABSENT


def test_a_fingerprint_is_the_sha256_of_the_source() -> None:
    expected = hashlib.sha256(b"async def coroutine(self):\n    return 2").hexdigest()

    assert fingerprint("fake_read.sub.module:Outer.coroutine") == expected


def test_a_fingerprint_does_not_depend_on_where_the_definition_stands(write_modules: WriteModules) -> None:
    before = fingerprint("fake_read.sub.module:Outer.method")

    write_modules({"fake_read/sub/module.py": "x = 1\n\n\n" + MODULE})

    assert fingerprint("fake_read.sub.module:Outer.method") == before


@pytest.mark.parametrize(
    ("old", "new"), [("return 1", "return 2"), ("a comment counts", "another comment"), ("(self)", "(this)")]
)
def test_a_fingerprint_sees_every_change_of_the_text(write_modules: WriteModules, old: str, new: str) -> None:
    before = fingerprint("fake_read.sub.module:Outer.method")

    write_modules({"fake_read/sub/module.py": MODULE.replace(old, new)})

    assert fingerprint("fake_read.sub.module:Outer.method") != before


def test_the_last_of_two_definitions_counts(write_modules: WriteModules) -> None:
    write_modules({"fake_read/twice.py": "def f():\n    return 1\n\ndef f():\n    return 2\n"})

    assert sources.attribute_source("fake_read.twice:f") == "def f():\n    return 2"


@pytest.mark.parametrize(
    "module",
    [
        "if x:\n    def f():\n        return 1\n",
        "if x:\n    pass\nelif y:\n    pass\nelse:\n    def f():\n        return 1\n",
        "try:\n    def f():\n        return 1\nfinally:\n    pass\n",
        "try:\n    import fast\nexcept ImportError:\n    def f():\n        return 1\n",
        "try:\n    def f():\n        return 1\nexcept ImportError:\n    def f():\n        return 2\n",
        "if x:\n    try:\n        pass\n    finally:\n        def f():\n            return 1\n",
    ],
)
def test_a_definition_is_found_in_every_branch_of_if_and_try(write_modules: WriteModules, module: str) -> None:
    write_modules({"fake_read/branches.py": module})

    assert sources.attribute_source("fake_read.branches:f") == "def f():\n    return 1"


def test_a_search_tells_found_from_not_found_from_no_such_module() -> None:
    answers = [sources.search(*what) for what in (("fake_read", r"Run\w+"), ("fake_read", "absent"), ("no_such_package", "x"))]

    assert answers == [True, False, None]


def test_the_engines_variables_and_arguments_are_read_from_its_source(write_modules: WriteModules) -> None:
    arguments = (
        "class EngineArgs:\n    model: str\n    seed: int = 0\n\nclass AsyncEngineArgs(EngineArgs):\n    log: bool = False\n"
    )
    envs = 'environment_variables = {\n    "VLLM_PORT": lambda: 2,\n}\n'
    elsewhere = 'import os\n\nvalue = os.environ.get("VLLM_ELSEWHERE")\n'
    write_modules(
        {
            "vllm/__init__.py": LOUD,
            "vllm/envs.py": envs,
            "vllm/engine/arg_utils.py": arguments,
            "vllm/deep/down.py": elsewhere,
        }
    )

    assert sources.unread_by_engine(["VLLM_USE_V1", "VLLM_PORT", "VLLM_ELSEWHERE"]) == ("VLLM_USE_V1",)
    assert sources.engine_fields() == {"model", "seed", "log"}


def test_an_engine_whose_source_is_not_there_has_no_known_variables_and_arguments(write_modules: WriteModules) -> None:
    write_modules({"vllm/__init__.py": ""})

    assert (sources.unread_by_engine([]), sources.engine_fields()) == (None, None)
