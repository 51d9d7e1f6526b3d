"""Built-in quirks of the flag TIMEOUT."""
