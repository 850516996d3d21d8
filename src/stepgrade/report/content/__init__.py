"""What each result shows, chosen once: a module per result gives the blocks that the writers draw."""
