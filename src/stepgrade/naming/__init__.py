"""What an operation or kernel is, by its name: class, role, direction."""
