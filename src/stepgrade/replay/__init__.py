"""A step as a graph of what waited for what, replayed with or without changes."""
