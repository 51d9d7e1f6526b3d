"""What a quirk is made of, and what it matches."""
