"""Built-in quirks of the flag SPECULATIVE."""
