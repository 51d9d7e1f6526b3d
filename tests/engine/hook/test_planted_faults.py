"""The cheap part of the table of planted faults: a dense model by the ways of vLLM and of our worker, and its adapters.

All of it runs under ``MODEL_QUIRKS_LEDGER=stop``: a healthy run that is refused is no healthy row.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "planted_faults.py"
WAYS = ("raw", "reload", "transfer", "add_lora", "ipc_zmq")
#: What the row of a fault has to say.
WORDS = {
    "layers swapped": "layers.0.input_layernorm.weight has the trainer's layers.1.input_layernorm.weight",
    "a tensor of another layer": "layers.0.self_attn.o_proj.weight has the trainer's layers.1.self_attn.o_proj.weight",
    "written past the loaders": "something writes past the engine's loaders",
    "never sent, the base in its place": "LoRA is on, no adapter was ever loaded",
    "alpha 0": "A, B or lora_alpha is zero",
    "the names of another model": "are no modules of this model",
    "loaded, and no request names it": "no request named one of the last 3 adapters",
}


def test_faults_are_named_and_healthy_updates_are_not_refused(programs):
    options = ("--kinds", "dense", "--groups", "vllm", "adapters", "ours", "--ways", *WAYS, "--updates", "3")

    ended = programs.run(sys.executable, SCRIPT, *options, "--jobs", "2", "--json")

    assert ended.code == 0, ended.text[-4000:]
    rows = [json.loads(line) for line in ended.text.splitlines() if line.startswith("{")]
    assert {row["way"] for row in rows} == {*WAYS}
    faults = [row for row in rows if "fault" in row]
    assert {row["status"] for row in faults if row["fault"] != "nothing sent"} == {"missing"}
    assert {row["update"] for row in faults} == {1, 2}
    assert [row for row in faults if WORDS.get(row["fault"], "") not in row["words"]] == []
    assert {row["status"] for row in rows if "healthy" in row} == {"arrived"}
