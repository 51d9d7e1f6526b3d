"""Built-in quirks of the flag DTYPE."""
