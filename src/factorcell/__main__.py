"""`python -m factorcell` is the command `factorcell`."""

import sys

from factorcell.commands.cli import main

sys.exit(main())
