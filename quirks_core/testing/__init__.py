"""What tests of quirks need: tiny real checkpoints."""
