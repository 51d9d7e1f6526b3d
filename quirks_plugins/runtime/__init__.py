"""Built-in quirks of the flag RUNTIME."""
