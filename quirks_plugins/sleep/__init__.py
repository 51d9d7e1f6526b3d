"""Built-in quirks of the flag SLEEP."""
