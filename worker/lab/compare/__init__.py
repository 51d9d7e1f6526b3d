"""Two engines on the same prompts: dumps, their comparison, and environments for versions of vLLM."""
