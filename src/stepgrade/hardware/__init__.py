"""What the hardware allows: the catalogue of accelerators, the cost model, and the ceilings they set."""
