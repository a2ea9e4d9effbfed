"""Charts and self-contained HTML pages of results."""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.reports.demo import demo_page as demo_page
    from factorcell.reports.runs import report_page as report_page

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
