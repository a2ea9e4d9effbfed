"""The version of the installed package, and the errors that say how to install its optional dependencies."""

import importlib
import re
from importlib.metadata import requires, version
from typing import Any

from factorcell.errors import UserError

__version__ = version("factorcell")
EXTRA = re.compile(r"""extra == ['"]([^'"]+)['"]""")


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, however this package was installed."""
    requirements = [requirement.partition(";") for requirement in requires("factorcell") or ()]
    packages = [package.strip() for package, _, marker in requirements if EXTRA.findall(marker) == [extra]]
    return " ".join(["pip install", *(f"'{package}'" for package in packages)])


def missing_package_error(purpose: str, package: str | None, extra: str) -> UserError:
    """Return the error that `purpose` requires a `package` of an `extra`, which is not installed."""
    return UserError(f"{purpose} requires the package {package}, which is not installed; {install_command(extra)}")


def import_extra(package: str, purpose: str, extra: str) -> Any:
    """Import a `package` of an `extra`; raise a `UserError` that says how to install it for `purpose`."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise missing_package_error(purpose, error.name, extra) from None
