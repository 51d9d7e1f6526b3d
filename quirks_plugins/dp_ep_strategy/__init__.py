"""Built-in quirks of the flag DP_EP_STRATEGY."""
