"""What a training step costs: FLOPs, bytes through memory, bytes over the link."""
