"""The tests, in the rooms of what they test; what several of them stand on lies beside this file."""

from pathlib import Path

ROOT = Path(__file__).parent.parent  # of the checkout
