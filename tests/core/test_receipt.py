"""The receipt: every expected process has the same plan and the engine has the planned values, or all faults in one error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quirks_core import Receipt, ReceiptError
from quirks_core.receipt import Acknowledgement, Effect, ReadBack, collect, read_acknowledgements

DIGEST = "d" * 64


def acknowledge(folder: Path, pid: int, process: str = "EngineCore_DP0", digest: str = DIGEST) -> Acknowledgement:
    """Writes what a process would write."""
    acknowledgement = Acknowledgement(
        pid=pid, process=process, digest=digest, effects=(Effect(slot="env.A", before=None, after="1"),)
    )
    acknowledgement.write(folder)
    return acknowledgement


def test_a_complete_receipt_holds_every_process_and_the_engines_values(tmp_path: Path) -> None:
    written = acknowledge(tmp_path, 7)
    values = (ReadBack(slot="engine.seed", planned=1, engine=1, binding=True),)

    receipt = collect(tmp_path, DIGEST, {7: "engine core"}, values)

    assert receipt == Receipt(digest=DIGEST, processes=(written,), engine=values)


def test_an_acknowledgement_is_not_seen_before_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: None)  # as if the process died just before the last step

    acknowledge(tmp_path, 7)

    assert read_acknowledgements(tmp_path) == ()


def test_the_driver_comes_first_then_processes_by_name(tmp_path: Path) -> None:
    for pid, name in ((1, "Worker_TP1"), (2, "EngineCore_DP0"), (3, "Worker_TP0"), (os.getpid(), "MainProcess")):
        acknowledge(tmp_path, pid, name)

    assert [ack.pid for ack in read_acknowledgements(tmp_path)] == [os.getpid(), 2, 3, 1]


def test_a_process_that_was_not_expected_may_acknowledge_and_is_left_out(tmp_path: Path) -> None:
    acknowledge(tmp_path, 7)
    acknowledge(tmp_path, 8)

    assert [ack.pid for ack in collect(tmp_path, DIGEST, {7: "worker 0"}).processes] == [7]


def test_a_missing_acknowledgement_is_an_error(tmp_path: Path) -> None:
    acknowledge(tmp_path, 7)

    with pytest.raises(ReceiptError, match=r"worker 1 \(process 8\) did not acknowledge the plan"):
        collect(tmp_path, DIGEST, {7: "worker 0", 8: "worker 1"})


def test_another_plans_acknowledgement_is_an_error(tmp_path: Path) -> None:
    acknowledge(tmp_path, 7, digest="e" * 64)

    with pytest.raises(
        ReceiptError, match=r"EngineCore_DP0 \(process 7\) carries out plan eeeeeeeeeeee… instead of dddddddddddd…"
    ):
        collect(tmp_path, DIGEST, {7: "engine core"})


def test_a_value_that_the_engine_changed_is_an_error_that_says_wanted_and_got(tmp_path: Path) -> None:
    values = [ReadBack(slot="engine.enforce_eager", planned=True, engine=False, binding=True)]

    with pytest.raises(ReceiptError, match=r"engine\.enforce_eager: the plan wanted True, the engine has False"):
        collect(tmp_path, DIGEST, {}, values)


def test_a_value_that_no_quirk_asked_for_may_differ(tmp_path: Path) -> None:
    values = (ReadBack(slot="engine.max_model_len", planned=None, engine=4096),)

    assert collect(tmp_path, DIGEST, {}, values).engine == values


def test_all_faults_are_in_one_error(tmp_path: Path) -> None:
    acknowledge(tmp_path, 7, digest="e" * 64)
    values = [ReadBack(slot="engine.seed", planned=1, engine=2, binding=True)]

    with pytest.raises(ReceiptError) as error:
        collect(tmp_path, DIGEST, {7: "worker 0", 8: "worker 1"}, values)

    parts = ("worker 1 (process 8)", "carries out plan", "engine.seed")
    assert [part for part in parts if part not in str(error.value)] == []


def test_an_acknowledgement_that_cannot_be_read_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "ack-9.json").write_text("{", encoding="utf-8")

    with pytest.raises(ReceiptError, match=r"acknowledgement ack-9\.json cannot be read"):
        collect(tmp_path, DIGEST, {})


def test_a_receipt_survives_json(tmp_path: Path) -> None:
    acknowledge(tmp_path, 7)
    receipt = collect(tmp_path, DIGEST, {7: "engine core"}, [ReadBack(slot="engine.seed", planned=1, engine=1)])

    assert Receipt.model_validate_json(receipt.model_dump_json()) == receipt
