"""Comparison: a run with its baseline, one runtime with another."""
