"""What an engine's error says, and which quirks it can have to do with."""

from __future__ import annotations

import pytest

from quirks_core import Default, Patch
from worker.engine import failures

TARGET = "pluggy._manager:PluginManager.register"


@pytest.fixture
def plan(quirk_registry, quirk_context, declare):
    """The plan of three quirks: one sets the KV cache's dtype, two patch, with functions of one file."""
    quirk_registry.add(
        declare("acme-sets", Default("engine.kv_cache_dtype", "fp8"), title="It sets"),
        declare("acme-patches", Patch(TARGET, wrapper="acme.fixes:make", expects="0" * 12)),
        declare("acme-wraps", Patch(TARGET, wrapper="acme.fixes:wrap", expects="0" * 12)),
    )
    return quirk_registry.resolve(quirk_context(purpose="rollout"))


def named(notes):
    """The quirks that notes name."""
    return {note.split()[1] for note in notes if note.startswith("quirk ")}


@pytest.mark.parametrize(
    "message",
    [
        "kv_cache_dtype: Input should be 'auto'",
        "engine.kv_cache_dtype is 'auto' in the engine",
        "unrecognized --kv-cache-dtype",
    ],
)
def test_a_quirk_behind_an_error_is_named_with_its_switch(plan, message):
    (note,) = failures.notes(RuntimeError(message), plan, "")

    assert note.startswith("quirk acme-sets (It sets) set engine.kv_cache_dtype = fp8")
    assert note.endswith("--disable acme-sets")


@pytest.mark.parametrize(
    ("function", "quirks"),
    [("make", {"acme-patches"}), ("wrap", {"acme-wraps"}), ("<lambda>", {"acme-patches", "acme-wraps"})],
)
def test_a_quirk_whose_code_was_running_is_named(plan, function, quirks):
    traceback = f'EngineCore:   File "/site/acme/fixes.py", line 3, in {function}\n'

    assert named(failures.notes(RuntimeError("no memory"), plan, traceback)) == quirks


@pytest.mark.parametrize(("called", "quirks"), [("register", set()), ("allocate", {"acme-patches"})])
def test_a_wrapper_that_only_called_on_is_not_named(plan, called, quirks):
    traceback = f"""Traceback (most recent call last):
  File "/site/acme/fixes.py", line 3, in make
  File "/site/tracing.py", line 5, in traced
  File "/site/pluggy/_manager.py", line 9, in {called}
  File "/site/torch/nn.py", line 7, in allocate
"""

    assert named(failures.notes(RuntimeError("no memory"), plan, traceback)) == quirks


@pytest.mark.parametrize(
    "message",
    ["dtype: Input should be 'auto'", "Worker ended", "Dumping input data for engine (v1) with config: kv_cache_dtype=fp8"],
)
def test_without_either_no_quirk_is_blamed(plan, message):
    traceback = '  File "/site/other/fixes.py", line 3, in make\n'

    (note,) = failures.notes(RuntimeError(message), plan, traceback)

    assert note.startswith("no quirk changed anything that this error names (3 are active")


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (RuntimeError("cannot\n\n  load it\n"), ["cannot", "load it"]),
        (RuntimeError(), ["RuntimeError"]),
        (RuntimeError("\n".join(map(str, range(100)))), [str(n) for n in range(12)]),
    ],
)
def test_an_error_keeps_its_first_lines(error, lines):
    assert str(failures.start_error(error, [])) == "the engine died while it started: " + "\n  ".join(lines)
