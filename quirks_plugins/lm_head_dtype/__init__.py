"""Built-in quirks of the flag LM_HEAD_DTYPE."""
