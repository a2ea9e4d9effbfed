"""Tests, in the folders of the packages that they test; shared helpers are in this folder."""

from pathlib import Path

ROOT = Path(__file__).parent.parent  # of the checkout
