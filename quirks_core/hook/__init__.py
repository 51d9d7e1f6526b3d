"""Quirks in every engine of vLLM, by one variable: ``MODEL_QUIRKS=on vllm serve …``, a script with ``LLM(...)``, a trainer.

`quirks_core.bootstrap` loads this package where MODEL_QUIRKS is set; it wraps a few functions of vLLM (`vllm_functions`
lists them) and does nothing else until an engine is configured.
"""
