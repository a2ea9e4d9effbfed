"""What `python -m experiments.datasets SET --out DIR` runs."""

import importlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # scripts import each other by their bare names
sys.exit(importlib.import_module(f"{__package__}.command").main(sys.argv[1:]))
