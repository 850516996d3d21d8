"""Training logs and metric files: what each framework prints, read in one pass, and what that makes of a run."""
