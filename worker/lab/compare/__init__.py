"""Two engines on the same prompts: their dumps, and the comparison of these."""
