"""Built-in quirks of the flag LOAD_FORMAT."""
