# PYTHON_ARGCOMPLETE_OK
"""The command `factorcell`, also as `python -m factorcell`."""

import importlib
import sys

from factorcell import interrupts


def main() -> int:
    """Run the command that the words of the process are; the exit code."""
    interrupts.end_at_once()
    code: int = importlib.import_module("factorcell.commands.main").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
