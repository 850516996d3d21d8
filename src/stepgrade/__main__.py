"""`python -m stepgrade` is the command `stepgrade`."""

import sys

if not sys.flags.safe_path:
    # `-m` puts the current folder first; what lies beside a trace is not to be imported.
    del sys.path[0]

from stepgrade.cli import main

sys.exit(main())
