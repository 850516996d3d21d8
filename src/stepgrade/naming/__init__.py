"""What an operation or kernel is, by its name: its class, its role in a model, its direction."""
