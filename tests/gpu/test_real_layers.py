"""Layers with the widths of released models: from dummy weights, a refit makes the tokens that the checkpoint makes.

Multi-head latent attention with experts (DeepSeek-V3), linear attention (Qwen3-Next), FP8 with scales for blocks, LoRA, and
drafts (Qwen3-8B). Weights are random, layers and experts few. CI has no GPU; docs/results/gpu.md has the last results.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from worker import VllmAsyncGenerationWorker
from worker.batch import padded
from worker.lab.parity.session import running

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

VOCABULARY = 8192
NEW_TOKENS = 24
PROMPTS = [[5 + (131 * row + 17 * place * place) % (VOCABULARY - 5) for place in range(20 + 30 * row)] for row in range(4)]
_SHARED = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, "tie_word_embeddings": False, "dtype": "bfloat16"}
_HEADS = {"num_hidden_layers": 2, "num_attention_heads": 32, "head_dim": 128}
_GROUPS = {"n_group": 4, "topk_group": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_EXPERTS = {"moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 8}
#: What each model has beside `_SHARED`, by its name in transformers.
MODELS: dict[str, dict[str, Any]] = {
    "DeepseekV3": {"num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 16, **_GROUPS},
    "Qwen3Next": {"num_hidden_layers": 4, "num_experts": 32},
    "Qwen3Moe": {"hidden_size": 2048, "num_key_value_heads": 4, **_HEADS, **_EXPERTS},
    "Qwen3": {"hidden_size": 4096, "intermediate_size": 12288, "num_key_value_heads": 8, **_HEADS},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns each model with its folder; made when it is first needed."""
    made = {}

    def model(name):
        if name not in made:
            import transformers

            values = {**_SHARED, **MODELS[name], "architectures": [f"{name}ForCausalLM"]}
            config = getattr(transformers, f"{name}Config")(**values)
            torch.manual_seed(0)
            with torch.device("cuda"):
                policy = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
            folder = tmp_path_factory.mktemp(name)
            policy.save_pretrained(folder)
            made[name] = policy, folder
        return made[name]

    return model


@asynccontextmanager
async def engine(folder, load_format, **values) -> AsyncIterator[VllmAsyncGenerationWorker]:
    options = {
        "load_format": load_format,
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": 64,
        "gpu_memory_utilization": 0.3,
        "kv_cache_memory_bytes": 2 << 30,
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
        "vllm_kwargs": {"skip_tokenizer_init": True, **values},
    }
    sampling = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    config = {"model": str(folder), "engine": options, "sampling": sampling}
    async with running(VllmAsyncGenerationWorker(config)) as worker:
        yield worker


async def tokens(worker):
    """Generates from one prompt after another: in bfloat16, logits depend on what else is in the batch."""
    found = []
    for prompt in PROMPTS:
        async for _, output in worker.generate_async(padded([prompt]), greedy=True):
            found.append(output["output_ids"][0].tolist())
    return found


@pytest.mark.parametrize(
    ("name", "values"),
    [
        pytest.param("DeepseekV3", {}, id="latent attention"),
        pytest.param("Qwen3Next", {}, id="linear attention"),
        pytest.param("Qwen3Moe", {"enable_lora": True, "max_lora_rank": 16}, id="experts beside LoRA"),
        pytest.param("Qwen3", {"quantization": "fp8_per_block"}, id="FP8 blocks"),
        pytest.param("Qwen3Moe", {"quantization": "fp8_per_block"}, id="experts in FP8 blocks"),
    ],
)
async def test_a_refit_of_dummy_weights_makes_the_checkpoint_s_tokens(models, name, values):
    policy, folder = models(name)
    async with engine(folder, "auto", **values) as worker:
        expected = await tokens(worker)
    async with engine(folder, "dummy", **values) as worker:
        for _ in range(3):  # the first records, the second compares, the third copies
            await worker.refit_async(policy)
            assert await worker.verify_refit_async(policy) == {}
            assert await tokens(worker) == expected
            assert not worker.last_refit.unloaded


async def test_drafts_change_no_greedy_token_after_a_refit(models):
    policy, folder = models("Qwen3")
    drafts = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3}
    async with engine(folder, "auto") as worker:
        expected = await tokens(worker)
    async with engine(folder, "dummy", speculative_config=drafts) as worker:
        for _ in range(3):
            await worker.refit_async(policy)
            assert await tokens(worker) == expected
        assert await worker.verify_refit_async(policy) == {}


async def test_an_adapter_makes_the_same_tokens_on_refitted_weights(models, tmp_path):
    from peft import LoraConfig, get_peft_model
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    policy, folder = models("Qwen3")
    torch.manual_seed(1)
    adapter = get_peft_model(policy, LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False))
    adapter.save_pretrained(tmp_path / "adapter")
    policy = adapter.unload()
    request = LoRARequest("adapter", 1, str(tmp_path / "adapter"))
    options = {"enable_lora": True, "max_lora_rank": 16}

    async def with_adapter(worker):
        found = []
        for number, prompt in enumerate(PROMPTS):
            sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
            stream = worker.engine.llm.generate({"prompt_token_ids": prompt}, sampling, f"own-{number}", lora_request=request)
            async for output in stream:
                last = list(output.outputs[0].token_ids)
            found.append(last)
        return found

    async with engine(folder, "auto", **options) as worker:
        expected, plain = await with_adapter(worker), await tokens(worker)
    assert expected != plain
    async with engine(folder, "dummy", **options) as worker:
        for _ in range(3):
            await worker.refit_async(policy)
            assert await with_adapter(worker) == expected
            assert await tokens(worker) == plain
