"""Built-in quirks of the flag MOE_BACKEND."""
