"""One engine for what a trainer calls: generation, refits by every transport, updates in flight."""
