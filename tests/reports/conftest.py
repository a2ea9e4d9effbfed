"""The browser of the page tests."""

from tests.service.page.conftest import browser

__all__ = ["browser"]
