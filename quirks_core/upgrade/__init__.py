"""What an upgrade of vLLM changes for one run, by the source of both versions; nothing is installed or imported."""
