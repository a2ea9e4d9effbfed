"""Completion on a device in Chromium and Firefox: what is stored, the demo page under its policy, and a service."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.completion.device import export_to_device
from factorcell.completion.online import LearningRule
from factorcell.runs.run import Run
from factorcell.service.demo_page import export_page
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.learning import ServedModel
from factorcell.service.stores.store import open_store
from tests.kernels import compiled
from tests.screenshots import WINDOWS, find_problems
from tests.service.listening import listening
from tests.web.device_runs import save_run
from tests.web.tabs import ChromiumTab, OpenTab, Tab, play_in_tab, serving, wait_until

pytestmark = [pytest.mark.slow, compiled]

DOCUMENT = Path(__file__).parents[2] / "docs" / "on-device.md"
RULE = LearningRule("adagrad", 0.3)
IS_READY = "document.readyState === 'complete' && !document.querySelector('#device-note').hidden"
SHOWS_OPTIONS = "document.querySelector('[role=option]')"
OPTIONS = "return [...document.querySelectorAll('.fc-text')].map((option) => option.textContent);"
HISTORY = (
    "return [...document.querySelectorAll('.fc-option:has([data-source=history])')]"
    ".map((option) => option.querySelector('.fc-text').textContent);"
)


@pytest.fixture(scope="module")
def folder(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported run with its page."""
    folder = tmp_path_factory.mktemp("device")
    export_run(folder / "web")
    return folder / "web"


def export_run(folder: Path, **model: Any) -> Run:
    run = Run.open(save_run(folder.parent / f"{folder.name}-run", RULE, **model), precision="float32")
    export_to_device(run, folder)
    export_page(folder)
    return run


def open_page(tab: Tab, url: str) -> None:
    tab.open(url)
    wait_until(tab, IS_READY)


def type_text(tab: Tab, text: str) -> None:
    """Replace the text of the box, and wait for suggestions."""
    tab.run("const box = document.querySelector('#query'); box.value = ''; box.dispatchEvent(new Event('input'));")
    tab.type("#query", text)
    wait_until(tab, SHOWS_OPTIONS)


def accept_text(tab: Tab, text: str, notice: str = "Learned") -> None:
    tab.run("document.querySelector('#query').value = ''; document.querySelector('#notice').replaceChildren();")
    tab.type("#query", f"{text}\n")
    wait_for_notice(tab, notice)


def wait_for_notice(tab: Tab, text: str) -> None:
    wait_until(tab, f"document.querySelector('#notice').textContent.includes({json.dumps(text)})")


def wait_for_rows(tab: Tab, count: int) -> None:
    wait_until(tab, f"document.querySelectorAll('#texts li').length === {count}")


def saved_texts(tab: Tab) -> list[str]:
    texts: list[str] = tab.run("return [...document.querySelectorAll('#texts .text')].map((text) => text.textContent);")
    return texts


def press(tab: Tab, selector: str) -> None:
    tab.run("document.querySelector(values[0]).click();", selector)


def test_texts_and_vector_are_persistent(open_tab: OpenTab, folder: Path) -> None:
    with serving(folder) as site:
        first = play_in_tab(open_tab(), site, [["accept", "bread"], ["accept", "cake"], ["vector"], ["export"]])
        second = play_in_tab(open_tab(), site, [["vector"], ["export"], ["pause"]])
        third = play_in_tab(open_tab(), site, [["accept", "boat"], ["delete"], ["export"]])
    assert first[2:] == second[:2]
    assert third[0] == {"outcome": "paused"}
    assert (third[2]["texts"], third[2]["paused"]) == ([], False)


def test_a_new_model_learns_the_stored_texts(open_tab: OpenTab, folder: Path, tmp_path: Path) -> None:
    export_run(tmp_path / "new", hidden_size=21)
    texts = ["bread", "cake", "how to bake"]
    script = [*(["accept", text] for text in texts), ["vector"]]
    with serving(folder) as site:
        play_in_tab(open_tab(), site, script)
        site.folders[0] = tmp_path / "new"
        vector, exported = play_in_tab(open_tab(), site, [["vector"], ["export"]])
    with serving(tmp_path / "new") as site:
        *_, expected = play_in_tab(open_tab(), site, script)
    assert vector == expected
    assert [row["text"] for row in exported["texts"]] == texts


def test_the_page_sends_nothing(open_tab: OpenTab, folder: Path) -> None:
    tab = open_tab()
    with serving(folder) as site:
        open_page(tab, site.url)
        tab.run(
            "window.violations = []; document.addEventListener('securitypolicyviolation', (event) => {"
            " window.violations.push(event.violatedDirective); });"
        )
        wait_until(tab, "performance.now() > 1000")
        count = len(site.requests)
        type_text(tab, "br")
        accept_text(tab, "how to bake")
        accept_text(tab, "my password is hunter2", "Not saved: the text seems to contain a password.")
        accept_text(tab, "bread")
        wait_for_rows(tab, 2)
        assert saved_texts(tab) == ["bread", "how to bake"]
        type_text(tab, "how")
        assert tab.run(HISTORY) == ["how to bake"]
        press(tab, "#texts button")
        wait_for_notice(tab, "was forgotten")
        press(tab, "#pause")
        wait_for_notice(tab, "Learning is paused")
        press(tab, "#delete")
        press(tab, "#confirm-delete [value=delete]")
        wait_for_notice(tab, "All data of this page was deleted.")
        wait_for_rows(tab, 0)
        assert site.requests[count:] == []
        assert {"runtime/worker.js", "runtime/factorcell.wasm", "weights.safetensors"} <= {*site.requests}
        assert tab.run("return window.violations;") == []
        tab.run("new Image().src = 'http://localhost:9/text.png';")
        wait_until(tab, "window.violations.length")
        assert {*tab.run("return window.violations;")} == {"img-src"}


def test_two_tabs_show_the_same_texts(open_tab: OpenTab, folder: Path) -> None:
    first, second = open_tab(), open_tab()
    with serving(folder) as site:
        for tab in (first, second):
            open_page(tab, site.url)
        accept_text(first, "bread boat")
        type_text(second, "bread b")
        assert second.run(HISTORY) == ["bread boat"]
        press(first, "#delete")
        press(first, "#confirm-delete [value=delete]")
        wait_for_notice(first, "All data of this page was deleted.")
        type_text(second, "bread")
        assert second.run(HISTORY) == []


def test_the_documented_page_completes(open_tab: OpenTab, folder: Path, tmp_path: Path) -> None:
    blocks = dict(re.findall(r"^```(html|javascript)\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL))
    assert sum(len(block.splitlines()) for block in blocks.values()) <= 20
    (tmp_path / "index.html").write_text(blocks["html"])
    (tmp_path / "search.js").write_text(blocks["javascript"])
    (tmp_path / "qac").symlink_to(folder)
    tab = open_tab()
    with serving(tmp_path) as site:
        tab.open(site.url)
        wait_until(tab, "document.querySelector('[role=combobox]')")
        count = len(site.requests)
        tab.type("input", "br")
        wait_until(tab, SHOWS_OPTIONS)
        assert all(text.startswith("br") for text in tab.run(OPTIONS))
        tab.type("input", "ead boat\n")
        wait_until(tab, "document.querySelector('output').textContent.includes('bread boat')")
        tab.run("document.querySelector('input').value = '';")
        tab.type("input", "bread b")
        wait_until(tab, SHOWS_OPTIONS)
        assert "bread boat" in tab.run(OPTIONS)
        assert [name for name in site.requests[count:] if name != "favicon.ico"] == []


@pytest.fixture
def service_url(folder: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a service whose page can complete on the device."""
    run = Run.open(folder.parent / "web-run", precision="float32")
    service = Service(ServedModel(run), open_store(f"sqlite:///{tmp_path / 'users.db'}"))
    with listening(application(Site(service, Settings(deadline=5.0, device=folder)))) as url:
        yield url


def test_a_user_moves_between_a_device_and_a_service(browser: Any, service_url: str, tmp_path: Path) -> None:
    window = browser.new_context()
    tab = ChromiumTab(window)
    page = tab.page
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    tab.open(service_url)
    page.get_by_role("switch", name="On this device").check()
    wait_until(tab, IS_READY)
    requests: list[str] = []
    window.on("request", lambda request: requests.append(request.url))
    for text in ("bread", "how to bake"):
        accept_text(tab, text)
    wait_for_rows(tab, 2)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "device.json")
    assert [url for url in requests if url.startswith("http")] == [], "nothing is sent while the switch is on"

    page.get_by_role("switch", name="On this device").uncheck()
    answer = page.request.post(f"{service_url}v1/users", data=json.loads((tmp_path / "device.json").read_text()))
    assert [row["text"] for row in answer.json()["texts"]] == ["bread", "how to bake"]
    page.get_by_label("Add a user").fill("device")
    page.get_by_label("Add a user").press("Enter")
    accept_text(tab, "café", "for device")
    wait_for_rows(tab, 3)
    assert not page.locator("#import").is_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "service.json")

    page.get_by_role("switch", name="On this device").check()
    wait_for_rows(tab, 2)
    page.locator("#import-file").set_input_files(tmp_path / "service.json")
    wait_for_notice(tab, "service.json was imported.")
    wait_for_rows(tab, 3)
    assert saved_texts(tab) == ["café", "how to bake", "bread"]
    page.reload()
    wait_until(tab, IS_READY)
    wait_for_rows(tab, 3)
    (tmp_path / "wrong.json").write_text("{")
    page.locator("#import-file").set_input_files(tmp_path / "wrong.json")
    wait_for_notice(tab, "expected JSON")
    assert errors == []
    window.close()


@pytest.mark.parametrize("width", WINDOWS)
def test_the_page_fits_the_window(browser: Any, folder: Path, width: int) -> None:
    window = browser.new_context(viewport={"width": width, "height": WINDOWS[width]})
    tab = ChromiumTab(window)
    with serving(folder) as site:
        open_page(tab, site.url)
        accept_text(tab, "bread")
        type_text(tab, "b")
        assert find_problems(tab.page) == []
        assert not tab.page.locator("#users").is_visible()
        assert not tab.page.get_by_role("switch").is_visible()
    window.close()
