"""Built-in quirks of the flag ENVIRONMENT."""
