"""Words that every message shares."""

from __future__ import annotations

from quirks_core.base.text import listed


def test_a_message_names_the_first_and_counts_the_others():
    assert [listed("abc", most) for most in (2, 3)] == ["a, b and 1 more", "a, b, c"]
