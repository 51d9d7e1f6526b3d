"""Prompts that were seen before, after ``reload_weights`` of another policy, on whatever vLLM is installed.

usage: python scripts/reload_cache.py, and once more with MODEL_QUIRKS_DISABLE=prefix-cache-after-update
"""

import tempfile
from pathlib import Path

from quirks_core.facts.packages import installed_version
from worker.lab.kit.lab import Lab, set_environment


def main() -> None:
    """Prints how many greedy tokens are those of transformers with the new weights."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        first, second = lab.checkpoint("qwen3"), lab.checkpoint("qwen3", seed=1)
        expected = lab.reference(lab.trainer(second))
        with lab.llm(first, block_size=32) as llm:
            lab.greedy_of(llm)
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(second)})
            print(f"vLLM {installed_version('vllm')}: {lab.same_tokens(lab.greedy_of(llm), expected)}")


if __name__ == "__main__":
    set_environment()
    main()
