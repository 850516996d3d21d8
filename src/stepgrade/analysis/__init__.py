"""From what a run recorded to what it means."""
