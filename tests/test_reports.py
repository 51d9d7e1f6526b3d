"""``scripts/reports.py``: which reports nobody has answered yet."""

import json
from pathlib import Path

from programs import run_python

_SCRIPT = Path(__file__).parents[1] / "scripts" / "reports.py"


def test_a_report_is_known_or_shown_with_quirks_like_it(tmp_path):
    reports = [
        {"number": "vllm-project/vllm#55193", "title": "an adapter serves the base model", "versions": {"vllm": "0.28.0"}},
        {
            "number": "vllm-project/vllm#999901",
            "title": "LoRA adapters whose names match no module are ignored",
            "versions": {"vllm": "0.19.2"},
        },
        {"number": "huggingface/trl#55193", "title": "the number of another repository's report"},
        {"number": "verl-project/verl#751", "title": "all outputs become exclamation marks at some step"},
    ]
    (tmp_path / "reports.jsonl").write_text("\n".join(map(json.dumps, reports)), encoding="utf-8")

    found = json.loads(run_python(_SCRIPT, tmp_path / "reports.jsonl", "--json").stdout)

    assert [(row["known"], row["cited"], bool(row["reason"])) for row in found] == [
        (True, ["lora-unmatched-names"], False),
        (False, [], False),
        (False, [], False),
        (True, [], True),
    ]
    like = found[1]["like"][0]
    assert (like["quirk"], {"lora", "names", "match"} <= set(like["shared"])) == ("lora-unmatched-names", True)
    assert [row["like"][0]["concerned"] for row in found[:2]] == [True, False]  # of another version
