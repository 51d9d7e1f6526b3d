"""The package's own tests, as its author runs them: with the kit of model-quirks, on what pip installed."""

from __future__ import annotations

import pytest
from acme_quirks import eager, layer_scalar, sampler, site, wrappers

from quirks_core import Registry, discover
from quirks_core.testing.contract import QuirkContract


class TestEager(QuirkContract):
    """Every law that holds for a good quirk."""

    quirk = eager.QUIRK


class TestLayerScalar(QuirkContract):
    """Every law that holds for a good quirk."""

    quirk = layer_scalar.QUIRK


class TestSampler(QuirkContract):
    """Every law that holds for a good quirk."""

    quirk = sampler.QUIRK


class TestTimeout(QuirkContract):
    """Every law that holds for a good quirk."""

    quirk = site.TIMEOUT


class TestQueue(QuirkContract):
    """Every law that holds for a good quirk."""

    quirk = site.QUEUE


def test_every_quirk_is_registered() -> None:
    ours = Registry.load(item for item in discover() if item.distribution == "acme-quirks")

    ids = ["acme-eager", "acme-layer-scalar", "acme-quirks/queue", "acme-quirks/timeout", "acme-sampler"]
    assert ([item.quirk.id for item in ours.loaded], ours.broken) == (ids, ())


def test_only_a_temperature_of_zero_is_greedy() -> None:
    scaled = wrappers.greedy_at_zero(lambda logits, temperature: [logit / temperature for logit in logits])

    assert (scaled([1.0], 0.0), scaled([1.0], 2.0)) == ([1.0], [0.5])


def test_the_first_of_equal_logits_is_picked() -> None:
    assert wrappers.first_of_equals(None, [1.0, 3.0, 3.0]) == 1


@pytest.mark.parametrize("number", [0, 7])
def test_seeding_returns_the_seed(number: int) -> None:
    assert wrappers.seed(None, number) == number
