"""Timeline to Profile: phases, layers, memory, operations, and lines of code."""
