# PYTHON_ARGCOMPLETE_OK
"""`python -m factorcell` is the command `factorcell`."""

import sys

from factorcell.commands.main import main

sys.exit(main())
