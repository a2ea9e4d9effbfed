# PYTHON_ARGCOMPLETE_OK
"""The command `factorcell`; this module also makes it available as `python -m factorcell`."""

import sys

from factorcell.commands.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
