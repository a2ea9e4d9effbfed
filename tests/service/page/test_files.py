"""The files of the page: all of them served and packaged, and none of them needs what a strict policy forbids."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from factorcell.service.engine import Service
from factorcell.service.http import pages
from factorcell.service.http.application import application
from factorcell.service.http.site import Settings, Site

FOLDER = Path(pages.__file__).parent.parent / "page"
PATHS = {path: name for path, (folder, name, _) in pages.FILES.items() if folder == "service/page"}
NAMESPACES = {"http://www.w3.org/2000/svg"}  # a name, nothing that is asked for
SINKS = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function")


class Tags(HTMLParser):
    """What a page has: its elements with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("script", "style"):
            self.inside += data.strip()


@pytest.fixture
def client(service: Service) -> TestClient:
    return TestClient(application(Site(service)), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def tags() -> Tags:
    return Tags((FOLDER / "index.html").read_text(encoding="utf-8"))


def test_every_file_is_served_as_what_it_is(client: TestClient) -> None:
    assert sorted(PATHS.values()) == sorted(path.name for path in FOLDER.iterdir())
    for path, name in PATHS.items():
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, (FOLDER / name).read_bytes())
        assert answer.headers["content-type"].startswith(pages.MEDIA[Path(name).suffix[1:]])
        assert answer.headers["content-security-policy"] == pages.PAGE_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_browser_keeps_a_file_until_it_changes(client: TestClient) -> None:
    first = client.get("/page.css")
    assert first.headers["cache-control"] == "no-cache"
    for sent in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = client.get("/page.css", headers={"if-none-match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get("/page.css", headers={"if-none-match": '"other"'}).status_code == 200


def test_only_the_box_may_be_loaded_by_other_sites(client: TestClient) -> None:
    name = "cross-origin-resource-policy"
    assert [path for path in pages.FILES if client.get(path).headers[name] != "same-origin"] == [f"/{pages.BOX}"]


def test_page_has_nothing_inline(tags: Tags) -> None:
    assert tags.inside == ""
    names = {name for _, attributes in tags.found for name in attributes}
    assert {name for name in names if name == "style" or name.startswith("on")} == set()


def test_page_loads_its_own_files_alone(tags: Tags) -> None:
    named = [(tag, values[name]) for tag, values in tags.found for name in ("src", "href", "action") if name in values]
    assert {address for tag, address in named if tag != "a"} == set(PATHS.values()) - {"index.html"}
    assert {address for tag, address in named if tag == "a"} == {"docs"}


@pytest.mark.parametrize("name", PATHS.values())
def test_files_name_no_other_place_and_make_no_markup(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    found = set(re.findall(r"""https?://[^\s"'`)>]*|url\([^)]*\)|@import""", text))
    examples = {found for found in found if "example.org" in found or found == "https://"}
    assert found - examples <= NAMESPACES
    assert not SINKS.search(text)


def test_every_name_and_reference_leads_to_an_element(tags: Tags) -> None:
    ids = [values["id"] for _, values in tags.found if "id" in values]
    assert len(ids) == len(set(ids))
    named = {
        word
        for _, values in tags.found
        for name in ("for", "aria-labelledby", "aria-describedby")
        for word in (values.get(name) or "").split()
    }
    scripts = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("page.js", "learned.js"))
    assert named | set(re.findall(r"\$\(\"([\w-]+)\"\)", scripts)) <= set(ids)


@pytest.mark.parametrize("hint", ["", "Type a query", 'a "b" <script>'])
def test_the_empty_box_says_what_one_types(hint: str, service: Service) -> None:
    site = Site(service, settings=Settings(hint=hint))
    text = TestClient(application(site), base_url="http://127.0.0.1").get("/").text
    (box,) = [given for _, given in Tags(text).found if given.get("id") == "query"]
    assert box["placeholder"] == (hint or pages.HINT)
    assert "<script>" not in text
