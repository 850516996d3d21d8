"""From a Profile to the figures of its scorecard: step times, efficiency, causes, fingerprint."""
