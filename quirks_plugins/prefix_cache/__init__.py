"""Built-in quirks of the flag PREFIX_CACHE."""
