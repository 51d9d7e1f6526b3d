"""Built-in quirks of the flag KV_CACHE."""
