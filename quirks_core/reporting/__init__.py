"""What is said to a person: one record for a finding, the view of a plan, and the terminal that shows both."""
