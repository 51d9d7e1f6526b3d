"""Probes for expert parallelism in vLLM's source; several rules of this flag rest on them."""

from __future__ import annotations

from quirks_core import StaticProbe

#: The ranks of an expert-parallel group are those of all data-parallel replicas times their tensor-parallel ranks.
group_spans_data_and_tensor = StaticProbe(
    "vllm.distributed.parallel_state",
    r"-1,\s+data_parallel_size\s+\* prefill_context_model_parallel_size\s+\* tensor_model_parallel_size",
    found_means_affected=True,
)

#: Only the flag shards experts, and only where there is more than one rank.
flag_alone_decides = StaticProbe(
    "vllm.model_executor.layers.fused_moe.config",
    r"dp_size_ \* pcp_size_ \* tp_size_ > 1\s+and vllm_parallel_config\.enable_expert_parallel",
    found_means_affected=True,
)
