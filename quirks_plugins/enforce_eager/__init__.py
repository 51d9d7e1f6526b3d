"""Built-in quirks of the flag ENFORCE_EAGER."""
