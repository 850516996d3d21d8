"""Bytes to Profiles and Traces: one reader per format, found by content."""
