"""What this trainer changes in vLLM: one target that 0.33 still has as it was, and one that is gone there."""

from vllm.v1.core import kv_cache_utils
from vllm.v1.sample.sampler import Sampler

_compute_logprobs = Sampler.compute_logprobs


def compute_logprobs(logits):
    """Computes in float32, whatever the model's dtype."""
    return _compute_logprobs(logits.float())


def check_enough_kv_cache_memory(*_):
    """Lets an engine start with little memory."""


Sampler.compute_logprobs = staticmethod(compute_logprobs)
kv_cache_utils.check_enough_kv_cache_memory = check_enough_kv_cache_memory
