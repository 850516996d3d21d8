"""What holds a run back: rules over what scoring worked out, and the advice."""
