"""Training logs and metric files: what each framework prints, and the run that it describes."""
