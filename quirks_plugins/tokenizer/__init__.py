"""Built-in quirks of the flag TOKENIZER."""
