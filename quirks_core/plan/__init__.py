"""From the quirks that apply to the plan of a run."""
