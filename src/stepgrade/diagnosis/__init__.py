"""Why a run is slow: rules over what scoring worked out, and advice on the bottleneck."""
