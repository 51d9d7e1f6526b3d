"""Built-in quirks of the flag CONTEXT_PARALLEL."""
