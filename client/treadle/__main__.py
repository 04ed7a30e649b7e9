"""`python -m treadle`: the same as the command `treadle`."""

import sys

from treadle.cli import main

sys.exit(main())
