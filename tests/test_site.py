"""The documentation site in Chromium: every command has a help block, and no page is wider than a phone."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import COMMANDS
from tests.screenshots import WINDOWS, find_problems

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
# Wide tables of the other pages scroll within the page.
WHOLE_PAGES = ("commands", "index", "install")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(ROOT / "docs"), str(folder)]
    subprocess.run(command, check=True, cwd=ROOT)
    return folder


def test_pages_fit_the_window(site: Path, browser: Any) -> None:
    for width, height in WINDOWS.items():
        tab = browser.new_page(viewport={"width": width, "height": height})
        for path in sorted(site.rglob("*.html")):
            tab.goto(path.as_uri())
            page_width = tab.evaluate("document.documentElement.scrollWidth")
            assert page_width <= width, (path.name, page_width)
            if path.parent == site and path.stem in WHOLE_PAGES:
                assert find_problems(tab) == [], (path.name, width)
        tab.close()


def test_the_page_of_commands_has_a_block_of_help_for_each_command(site: Path, browser: Any) -> None:
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto((site / "commands.html").as_uri())
    blocks = tab.locator("div.help pre")
    assert blocks.count() == len(COMMANDS)
    assert all(text.startswith("usage: factorcell") for text in blocks.all_inner_texts())
    assert blocks.first.evaluate("block => block.scrollWidth <= block.clientWidth")
    tab.close()
