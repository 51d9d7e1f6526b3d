"""The kit on a real engine: the marker tells a quirk that the installed vLLM needs from one that it does not."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)


@pytest.mark.quirk("gemma4-layer-scalar")
async def test_a_refitted_gemma4_generates_what_the_trainers_model_does(quirk_lab, tiny_checkpoint, quirk_engine):
    model = tiny_checkpoint("gemma4")
    trainer = quirk_lab.trainer(model)

    async with quirk_engine(model) as worker:
        await worker.refit_async(trainer)
        outcome = quirk_lab.same_tokens(await quirk_lab.greedy(worker), quirk_lab.reference(trainer))

    assert outcome.passed, f"{outcome.measure}: {outcome.got}, not {outcome.expected}"


NOT_NEEDED = """
import pytest

@pytest.mark.quirk("gemma-normalizer-dummy-load")
async def test_gemma3(quirk_lab, quirk_engine):
    model = quirk_lab.checkpoint("gemma3")
    trainer = quirk_lab.trainer(model)
    async with quirk_engine(model) as worker:
        await worker.refit_async(trainer)
        assert quirk_lab.same_tokens(await quirk_lab.greedy(worker), quirk_lab.reference(trainer)).passed
"""


def test_a_quirk_that_the_installed_vllm_does_not_need_fails_its_own_test(pytester):
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(NOT_NEEDED)

    result = pytester.runpytest_subprocess("-k", "without", "-p", "no:cacheprovider")

    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(
        ["passes without gemma-normalizer-dummy-load on vLLM *: the quirk is not needed here (quirks prove *)"]
    )
