"""What weight updates did in each engine process, and the verdicts on them."""
