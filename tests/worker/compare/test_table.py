"""A comparison in a terminal: everything is there, without boxes, and foreign text is neutralised."""

from __future__ import annotations

from worker.lab.compare.compare import compare
from worker.lab.compare.table import show_comparison

EVIL = "\x1b[31m[red]:x:\nfail forged"


def test_a_comparison_is_shown_in_lines_of_one_thing_each(dumped, screened):
    """Of engines that differ in logprobs, versions, quirks, and settings of all kinds; one name is hostile."""
    a = dumped()
    effective = {**a.effective, "model_config.logprobs_mode": "raw_logprobs", f"acme.{EVIL}": EVIL}
    rows = tuple(
        item.model_copy(update={"logprobs": tuple(value - 0.5 for value in item.logprobs)}) if item.kind == "sampled" else item
        for item in a.rows
    )
    b = dumped(
        rows, scored_for=a, versions={"vllm": "0.32.0", "torch": "2.13.0"}, quirks=("double-bos", "acme/one"),
        settings={"engine.dtype": "bfloat16", "sampling.temperature": 0.7}, effective=effective,
    )  # fmt: skip
    differing = compare(a, b)

    text = screened(lambda screen: show_comparison(screen, differing), width=None)

    rows = [" ".join(row.split()) for row in text.splitlines()]
    assert rows[0] == "tiny: A = vLLM 0.30.0 on cpu, B = vLLM 0.32.0 on cpu"
    for row in (
        "rows result same equal tokens mean |Δ| max |Δ| KL k3",
        "greedy ok 2 of 2 5 of 5 0 0 0",
        "sampled fail 2 of 2 6 of 6 0.500 0.500 0.107",
        "teacher-forced ok - 11 scored 0 0 0",
        "model_config.logprobs_mode: A processed_logprobs, B raw_logprobs",
        "vllm A 0.30.0, B 0.32.0",
        "engine.dtype A float32, B bfloat16",
        "quirk acme/one: in force only in B",
    ):
        assert row in rows
    assert any(row.startswith("fail sampled: mean_abs_delta 0.500, limit ≤ 0.2 (") for row in rows)
    assert any(row.startswith("settings of the engine that only B has: acme.") for row in rows)
    assert rows[-1] == differing.reading
