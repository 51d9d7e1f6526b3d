"""What the paired runs of the quirks on requests share."""

from typing import Any


async def answer(engine: Any, name: str, **wanted: Any) -> str:
    """Returns how many tokens a request with these sampling parameters gets, of four, or the error that refuses it."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    params = SamplingParams(max_tokens=4, ignore_eos=True, **wanted)
    try:
        async for output in engine.generate({"prompt_token_ids": [5, 6, 7]}, params, name):
            result = output.outputs[0]
    except VLLMValidationError as error:
        return str(error)
    return f"{len(result.token_ids)} tokens"
