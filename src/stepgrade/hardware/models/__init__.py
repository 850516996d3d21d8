"""What a model is made of, read from its config.json."""
