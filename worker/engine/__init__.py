"""One vLLM engine: its processes, the adapter to vLLM's API, topology and diagnostics."""
