"""Names and shapes of operations to FLOPs and bytes."""
