"""Built-in quirks of the flag MULTIMODAL."""
