"""``scripts/reports.py``: which reports nobody has answered yet."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[1] / "scripts" / "reports.py"
_REPORTS = [
    {"number": "vllm-project/vllm#55193", "title": "an adapter serves the base model", "versions": {"vllm": "0.28.0"}},
    {
        "number": "vllm-project/vllm#999901",
        "title": "LoRA adapters whose names match no module are ignored",
        "versions": {"vllm": "0.19.2"},
    },
    {"number": "huggingface/trl#55193", "title": "the number of another repository's report"},
    {"number": "verl-project/verl#751", "title": "all outputs become exclamation marks at some step"},
]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    file = tmp_path_factory.mktemp("reports") / "reports.jsonl"
    file.write_text("\n".join(map(json.dumps, _REPORTS)), encoding="utf-8")
    done = subprocess.run([sys.executable, str(_SCRIPT), str(file), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_report_that_a_quirk_cites_is_known(known):
    assert [(row["known"], row["cited"]) for row in known] == [
        (True, ["lora-unmatched-names"]),
        (False, []),
        (False, []),
        (True, []),
    ]


def test_a_report_without_a_quirk_for_a_reason_is_known(known):
    assert [bool(row["reason"]) for row in known] == [False, False, False, True]


def test_an_unknown_report_is_shown_with_quirks_of_its_words(known):
    first = known[1]["like"][0]

    assert first["quirk"] == "lora-unmatched-names"
    assert {"lora", "names", "match"} <= set(first["shared"])


def test_a_quirk_like_a_report_of_another_version_says_so(known):
    assert [row["like"][0]["concerned"] for row in known[:2]] == [True, False]
