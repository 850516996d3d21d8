"""Several ranks as one run: matching collectives, clocks, parallel dimensions, and the merge."""
