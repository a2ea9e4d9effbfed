"""Entry point of `python -m experiments.datasets SET --out DIR`."""

import importlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the scripts import each other without a package
sys.exit(importlib.import_module(f"{__package__}.command").main(sys.argv[1:]))
