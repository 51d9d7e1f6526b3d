"""Built-in quirks of the flag LORA."""
