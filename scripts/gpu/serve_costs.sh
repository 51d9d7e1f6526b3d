#!/usr/bin/env bash
# What the quirks cost vLLM's own server: seconds to start and tokens per second, with and without them by turns.
# usage: scripts/gpu/serve_costs.sh FOLDER_FOR_RESULTS [SHAPE] [TURNS] [OPTION OF VLLM SERVE…]
set -uo pipefail
out=$(realpath "${1:?usage: serve_costs.sh FOLDER [SHAPE] [TURNS] [OPTION…]}") shape=${2:-1.7B} turns=${3:-2}
model=$(mktemp -d)/model
python3 - "$model" "$shape" <<'PYTHON'
import json
import sys
from pathlib import Path
from transformers import AutoTokenizer
sys.path.insert(0, "benchmarks")
import measure
from worker.lab.kit.checkpoints import build

folder = build("qwen3", Path(sys.argv[1]))  # for its tokenizer
for weights in folder.glob("*.safetensors*"):
    weights.unlink()
measure.qwen3(folder, sys.argv[2])
# As many token ids as the tokenizer has: text from any other id is slow, and one of the quirks keeps such ids away.
config = json.loads((folder / "config.json").read_text())
config["vocab_size"] = len(AutoTokenizer.from_pretrained(folder))
(folder / "config.json").write_text(json.dumps(config))
PYTHON
vllm="python3 -m vllm.entrypoints.cli.main"
for turn in $(seq "$turns"); do
    for mode in without with; do
        started=$(date +%s%3N)
        env $([ $mode = with ] && echo MODEL_QUIRKS=rollout) $vllm serve "$model" --load-format dummy --max-model-len 2048 \
            --port 8124 --no-enable-log-requests "${@:4}" >"$out/serve-$mode-$turn.log" 2>&1 &
        server=$!
        for _ in $(seq 2400); do
            kill -0 $server 2>/dev/null || { echo "$mode, turn $turn: died" && tail -3 "$out/serve-$mode-$turn.log" && exit 1; }
            curl -sf -m 2 http://127.0.0.1:8124/health && break
            sleep 0.1
        done
        echo "$mode, turn $turn: ready after $(($(date +%s%3N) - started)) ms"
        $vllm bench serve --model "$model" --port 8124 --dataset-name random --random-input-len 256 --random-output-len 256 \
            --num-prompts 768 --max-concurrency 256 --num-warmups 64 --ignore-eos --save-result --result-dir "$out" \
            --result-filename "bench-$mode-$turn.json" >"$out/bench-$mode-$turn.log" 2>&1
        grep -aE "Output token throughput|Mean TPOT|Mean TTFT" "$out/bench-$mode-$turn.log"
        kill -TERM $server
        wait $server
    done
done
grep -a "model-quirks:" "$out/serve-with-1.log"
