"""Try the changes that a recording's findings suggest, prove them, and write those that hold."""
