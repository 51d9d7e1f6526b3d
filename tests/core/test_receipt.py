"""The receipt: every expected process has the same plan and the engine has the planned values, or all faults in one error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quirks_core.apply.receipt import Acknowledgement, Effect, ReadBack, Receipt, collect, read_acknowledgements
from quirks_core.base.errors import ReceiptError

DIGEST = "d" * 64


def acknowledge(folder, pid, process="EngineCore_DP0", digest=DIGEST, engine=None):
    """Writes what a process would write."""
    effects = (Effect(slot="env.A", before=None, after="1"),)
    acknowledgement = Acknowledgement(pid=pid, process=process, digest=digest, effects=effects, engine=engine or {})
    acknowledgement.write(folder)
    return acknowledgement


def test_a_complete_receipt_holds_every_process_and_the_engines_values_and_survives_json(tmp_path):
    written = acknowledge(tmp_path, 7)
    values = (
        ReadBack(slot="engine.seed", planned=1, engine=1, binding=True),
        ReadBack(slot="engine.max_model_len", planned=None, engine=4096),  # no quirk asked for it
    )

    receipt = collect(tmp_path, DIGEST, {7: "engine core"}, values)

    assert receipt == Receipt(digest=DIGEST, processes=(written,), engine=values)
    assert Receipt.model_validate_json(receipt.model_dump_json()) == receipt


def test_an_acknowledgement_is_not_seen_before_it_is_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda *_: None)  # as if the process died just before the last step

    acknowledge(tmp_path, 7)

    assert read_acknowledgements(tmp_path) == ()


def test_the_driver_comes_first_then_processes_by_name(tmp_path):
    for pid, name in ((1, "Worker_TP1"), (2, "EngineCore_DP0"), (3, "Worker_TP0"), (os.getpid(), "MainProcess")):
        acknowledge(tmp_path, pid, name)

    assert [ack.pid for ack in read_acknowledgements(tmp_path)] == [os.getpid(), 2, 3, 1]


def test_a_process_that_was_not_expected_may_acknowledge_and_is_left_out(tmp_path):
    acknowledge(tmp_path, 7)
    acknowledge(tmp_path, 8)

    assert [ack.pid for ack in collect(tmp_path, DIGEST, {7: "worker 0"}).processes] == [7]


def test_all_faults_are_in_one_error_with_what_was_wanted_and_got(tmp_path):
    acknowledge(tmp_path, 7, digest="e" * 64)
    acknowledge(tmp_path, 9, "Worker_TP0", engine={"engine.seed": 3, "engine.dtype": "x"})
    values = [
        ReadBack(slot="engine.enforce_eager", planned=True, engine=False, binding=True),
        ReadBack(slot="engine.seed", planned=1, engine=1, binding=True),
        ReadBack(slot="engine.dtype", planned="auto", engine="auto"),
    ]

    with pytest.raises(ReceiptError) as error:
        collect(tmp_path, DIGEST, {7: "worker 0", 8: "worker 1", 9: "worker 2"}, values)

    assert str(error.value).partition(": ")[2].split("; ") == [
        "worker 1 (process 8) did not acknowledge the plan",
        "EngineCore_DP0 (process 7) carries out plan eeeeeeeeeeee… instead of dddddddddddd…",
        "engine.enforce_eager: the plan wanted True, the engine has False",
        "engine.seed: the plan wanted 1, Worker_TP0 (process 9) has 3",
    ]


def test_an_acknowledgement_that_cannot_be_read_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "ack-9.json").write_text("{", encoding="utf-8")

    with pytest.raises(ReceiptError, match=r"acknowledgement ack-9\.json cannot be read"):
        collect(tmp_path, DIGEST, {})
