"""Readers: one file per format, found by content, each turning bytes into a Profile."""
