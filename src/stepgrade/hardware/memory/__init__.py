"""What one device holds while it trains: parts, phases, allocator, error bands, and whether it fits."""
