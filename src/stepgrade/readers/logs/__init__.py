"""Training logs and metric files: what each framework prints, and what that makes of a run."""
