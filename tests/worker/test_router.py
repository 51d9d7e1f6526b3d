"""Which engine gets which prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.group.actor_set import Router


def _rows(count, first=0):
    return {first + index: [index] for index in range(count)}


@given(st.data())
def test_counts_are_always_what_is_in_flight(data):
    router = Router(data.draw(st.integers(1, 4)))
    running: list[int] = []  # the engine of each request
    for _ in range(data.draw(st.integers(0, 30))):
        if running and data.draw(st.booleans()):
            engine = running.pop(data.draw(st.integers(0, len(running) - 1)))
            router.done(engine)
        else:
            pinned = data.draw(st.none() | st.integers(0, len(router.in_flight) - 1))
            shares = router.share(_rows(data.draw(st.integers(0, 5))), pinned)
            running += [engine for engine, rows in shares.items() for _ in rows]

        assert router.in_flight == [running.count(engine) for engine in range(len(router.in_flight))]


@given(st.integers(1, 8), st.integers(0, 50), st.integers(0, 1000))
def test_every_prompt_goes_to_one_engine_under_its_number(engines, count, first):
    """Engines have the same number of them, within one."""
    rows, router = _rows(count, first), Router(engines)

    shares = router.share(rows)

    assert max(router.in_flight) - min(router.in_flight) <= 1
    assert all(shares.values()), "an engine without prompts is missing"
    assert sum(map(len, shares.values())) == count
    assert {index: row for share in shares.values() for index, row in share.items()} == rows
