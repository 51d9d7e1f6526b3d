#!/usr/bin/env bash
# vLLM's own server with CUDA graphs under MODEL_QUIRKS: its log lines, its receipt and one completion.
# usage: scripts/gpu/serve.sh FOLDER_FOR_RESULTS
set -uo pipefail
out=$(realpath "${1:?usage: serve.sh FOLDER}")
model=$(mktemp -d)/qwen3
python3 -c "import sys; from pathlib import Path; from worker.lab.kit.checkpoints import build; build('qwen3', Path(sys.argv[1]))" "$model"
python3 -m quirks_core.cli run --purpose rollout --receipt "$out/serve-receipt.json" --require-receipt -- \
    python3 -m vllm.entrypoints.cli.main serve "$model" --max-model-len 256 --port 8123 >"$out/serve.log" 2>&1 &
server=$!
for _ in $(seq 240); do
    kill -0 $server 2>/dev/null || break
    curl -sf -m 2 http://127.0.0.1:8123/health && break
    sleep 1
done
curl -s -m 60 http://127.0.0.1:8123/v1/completions -H 'Content-Type: application/json' \
    -d "{\"model\": \"$model\", \"prompt\": \"once upon a time\", \"max_tokens\": 8, \"temperature\": 0.7, \"logprobs\": 0}" \
    | tee "$out/serve-completion.json"
echo
kill -TERM $server
wait $server
echo "exit code of quirks run: $?"
grep -a "model-quirks:" "$out/serve.log"
grep -a -i "cuda graph\|Graph capturing" "$out/serve.log" | tail -3
