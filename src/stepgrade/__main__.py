"""`python -m stepgrade` is the command `stepgrade`."""

import sys

from stepgrade.cli import main

sys.exit(main())
