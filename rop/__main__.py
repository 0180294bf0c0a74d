"""`python -m rop` is the command `rop`."""

import sys

from rop.cli import main

sys.exit(main())
