"""Built-in quirks of the flag ATTENTION."""
