"""Numbers, limits and values as reports write them."""

from __future__ import annotations

import math

import pytest

from worker.lab.parity.notation import bound, number
from worker.lab.parity.thresholds import judge, parse_threshold


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-3.0, "-3"), (480.0, "480"), (0.35, "0.350"), (1.0000083, "1.00"), (123.456, "123"), (1234.5, "1234"),
        (0.00123456, "0.00123"), (0.000123456, "1.23e-4"), (-2.5e-11, "-2.50e-11"), (2e9, "2.00e9"), (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_a_limit_is_written_with_its_side():
    verdicts = judge({"ess": 0.5, "kl_k1": 0.0, "max_abs_delta": 0.0}, [*map(parse_threshold, ("ess=0.3", "kl_k1=0.1"))])

    assert [bound(verdict) for verdict in verdicts] == ["≥ 0.3", "within ±0.1"]


def test_a_number_has_as_many_digits_as_tell_it_from_its_limits():
    assert [number(1.0527, 1.05), number(1.05004, 1.05), number(0.3, 0.005), number(1.05, 1.05)] == [
        "1.053", "1.05004", "0.300", "1.05",
    ]  # fmt: skip
