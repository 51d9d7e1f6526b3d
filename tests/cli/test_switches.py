"""``--disable``, ``--force``, ``--strict`` and ``--locked`` of the commands that describe a run."""

from __future__ import annotations

import pytest
from declarations import declared

ACME = declared("acme-eager", match='model_type("qwen3")')
OF_A_RUN = pytest.mark.parametrize("command", [("plan",), ("explain", "v1-runtime")], ids=lambda command: command[0])


@OF_A_RUN
def test_strict_makes_all_broken_plugins_fatal_at_once(quirks, model, install, command):
    install("acme-broken", "raise RuntimeError('imported')\n")
    install("acme-other", "QUIRK = 3\n")
    line = [*command, "--model", model(), "--strict"]

    outcome, loaded_only = quirks(*line), quirks(*line, "--disable", "third-party")

    assert (outcome.code, outcome.out, loaded_only.code) == (3, "", 0)
    assert "plugin 'acme-broken' of acme-broken 1.2" in outcome.err
    assert "plugin 'acme-other' of acme-other 1.2" in outcome.err


@OF_A_RUN
def test_a_quirk_that_is_not_in_the_lock_refuses_the_run(quirks, model, install, tmp_path, command):
    lock = tmp_path / "quirks.lock"
    assert quirks("lock", "--output", lock).code == 0
    line = [*command, "--model", model(), "--locked", lock]

    fits = quirks(*line)
    install("acme-eager", ACME)
    more = quirks(*line)
    off = quirks(*line, "--disable", "third-party")

    assert (fits.code, more.code, more.out, off.code) == (0, 1, "", 0)
    assert "acme-eager of acme-eager 1.2 is not in the lock file" in more.err
