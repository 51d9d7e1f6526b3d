"""Dumps by the engine: made twice they agree, and after other weights they do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from worker.lab.compare.causes import KNOWN
from worker.lab.compare.compare import compare
from worker.lab.compare.dumping import dump


@pytest.fixture(scope="module")
async def found(engine, policies, lab, tmp_path_factory):
    """A dump from a file, one more by the same engine, and one after a refit with other weights."""
    await engine.refit_async(policies.a.model)
    a = await dump(engine, lab.PROMPTS, seed=5)
    a.write(tmp_path_factory.mktemp("dumps") / "A.json")
    again = await dump(engine, lab.PROMPTS, seed=5, tokens_of=[a.sequences])
    await engine.refit_async(policies.b.model)
    other = await dump(engine, lab.PROMPTS, seed=5, tokens_of=[a.sequences])
    return SimpleNamespace(a=a, again=again, other=other)


def kinds(comparison):
    return {kind.kind: kind.level for kind in comparison.kinds}


def test_one_engine_agrees_with_itself(found):
    comparison = compare(found.a, found.again, profile="float32")

    assert kinds(comparison) == {"greedy": "ok", "sampled": "ok", "teacher-forced": "ok"}
    assert [(kind.rows, kind.identical) for kind in comparison.kinds] == [(3, 3), (6, 6), (9, 9)]
    assert (comparison.effective, comparison.settings, comparison.causes) == ((), (), ())


def test_other_weights_are_seen_on_the_same_tokens(found):
    comparison = compare(found.a, found.other)

    assert kinds(comparison)["teacher-forced"] == "fail"
    assert "the weights" in comparison.reading


def test_a_dump_holds_what_its_rows_were_made_with(found):
    """The receipt, a seed for each sampled row, and the logprobs that greedy tokens have when a prefill scores them."""
    a = found.a
    sampled = [row for row in a.rows if row.kind == "sampled"]
    scored = zip(a.rows, a.scored[a.digest], strict=True)
    pairs = [pair for row, again in scored if row.kind == "greedy" for pair in zip(row.logprobs, again, strict=True)]

    assert (a.receipt.digest, len(a.receipt.processes)) == (a.plan, 2)  # ours and the engine core
    assert [row.seed for row in sampled] == list(range(5, 11))
    assert len({row.tokens for row in sampled}) == 6
    assert a.settings["sampling.temperature"] == 0.7
    assert len(pairs) == 72
    assert max(abs(x - y) for x, y in pairs) < 1e-3


def test_every_setting_that_matters_is_one_of_the_engine_s(found):
    only_if_set = ("env.CUBLAS_", "env.NVIDIA_", "env.OMP_")
    exact = {name for name in KNOWN if not name.startswith(only_if_set) and not name.endswith((".", "_"))}

    assert exact - found.a.effective.keys() == set()
    assert "compilation_config.pass_config.fuse_norm_quant" in found.a.effective, "a configuration inside of another"
    assert found.a.effective["model_config.logprobs_mode"] == "processed_logprobs"
    assert found.a.effective["model_config.dtype"] == "float32"
