"""Built-in quirks of the flag LOGPROBS."""
