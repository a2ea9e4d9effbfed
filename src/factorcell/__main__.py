"""`python -m factorcell` is the command `factorcell`."""

import sys

from factorcell.cli import main

sys.exit(main())
