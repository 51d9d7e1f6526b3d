"""The engine half of the kit for authors of quirks: lab, checkpoints, scenarios and proofs."""
