"""Which factorcell this is."""

from importlib.metadata import version

__version__ = version("factorcell")
"""The version of the package that is installed."""
