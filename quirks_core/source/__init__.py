"""vLLM's source, read without importing it."""
