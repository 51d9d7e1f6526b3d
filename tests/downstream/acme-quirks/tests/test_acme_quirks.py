"""The package's own tests, as its author runs them: with the kit of model-quirks, on what pip installed."""

from __future__ import annotations

from acme_quirks import eager, sampler, site, wrappers

from quirks_core.testing.contract import QuirkContract


class TestEager(QuirkContract):
    """Every law that holds for a good quirk."""

    quirk = eager.QUIRK


class TestSampler(QuirkContract):
    """Every law that holds for a good quirk."""

    quirk = sampler.QUIRK


class TestTimeout(QuirkContract):
    """Every law that holds for a good quirk."""

    quirk = site.TIMEOUT


def test_only_a_temperature_of_zero_is_greedy() -> None:
    scaled = wrappers.greedy_at_zero(lambda logits, temperature: [logit / temperature for logit in logits])

    assert (scaled([1.0], 0.0), scaled([1.0], 2.0)) == ([1.0], [0.5])


def test_the_first_of_equal_logits_is_picked() -> None:
    assert wrappers.first_of_equals(None, [1.0, 3.0, 3.0]) == 1
