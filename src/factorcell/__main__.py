# PYTHON_ARGCOMPLETE_OK
"""The command `factorcell`, also as `python -m factorcell`."""

import importlib
import os
import sys

from factorcell import interrupts


def main() -> int:
    """Run the command that the words of the process are; the exit code."""
    interrupts.end_at_once()
    # PyTorch's threads then sleep while they wait for one another. Where other work takes a core they would turn in
    # circles for whole slices of its time, and a training be ten times as slow. Read once, when PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    code: int = importlib.import_module("factorcell.commands.main").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
