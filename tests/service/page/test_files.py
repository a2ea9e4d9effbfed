"""The files of the page: all are served and packaged, and none needs what a strict content security policy forbids."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from factorcell.completion.device import export_to_device
from factorcell.errors import UserError
from factorcell.service import demo_page
from factorcell.service.engine import Service
from factorcell.service.http import pages
from factorcell.service.http.application import Settings, Site, application

FOLDER = demo_page.FOLDER / "page"
PATHS = {pages.PATHS.get(name, f"/{name}"): name for name in demo_page.PAGE_FILES}
DOCS = {"/docs": "docs.html", "/docs.css": "docs.css"}
NAMESPACES = {"http://www.w3.org/2000/svg"}  # an identifier that is never requested
SINKS = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function")


class Tags(HTMLParser):
    """The elements of a page with their attributes, and the inline scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline_code = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("script", "style"):
            self.inline_code += data.strip()


@pytest.fixture
def client(service: Service) -> TestClient:
    return TestClient(application(Site(service)), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def tags() -> Tags:
    return Tags(demo_page.page_files()["index.html"].decode())


def test_every_file_is_served_with_its_media_type(client: TestClient) -> None:
    assert {*PATHS.values(), *DOCS.values()} == {path.name for path in FOLDER.iterdir()}
    for path, name in PATHS.items():
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, demo_page.page_files()[name])
        assert answer.headers["content-type"].startswith(pages.MEDIA_TYPES[Path(name).suffix[1:]])
        assert answer.headers["content-security-policy"] == pages.PAGE_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_exported_page_states_its_policy() -> None:
    page = Tags(demo_page.page_files("./", has_service=False)["index.html"].decode())
    policies = [values["content"] for _, values in page.elements if values.get("http-equiv")]
    assert policies == [
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
        "style-src 'self'; img-src 'self'"
    ]
    assert ("body", {"data-model": "./"}) in page.elements
    assert {"docs"}.isdisjoint(values.get("href") for _, values in page.elements)


def test_exported_model_is_served(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "web"
    export_to_device(service.model.run, folder)
    site = Site(service, Settings(device=folder))
    with pytest.raises(UserError, match="expected a folder of `factorcell export --to web`"):
        application(site)
    (folder / "runtime").mkdir()
    (folder / "runtime" / "index.js").write_text("export {};")
    (folder / "runtime" / "factorcell.wasm").write_bytes(b"")
    client = TestClient(application(site), base_url="http://127.0.0.1")
    media_types = {"model.json": "application/json", "weights.safetensors": "application/octet-stream"}
    media_types |= {"runtime/index.js": "text/javascript", "runtime/factorcell.wasm": "application/wasm"}
    for name, media_type in media_types.items():
        answer = client.get(f"/device/{name}")
        assert (answer.status_code, answer.content) == (200, (folder / name).read_bytes())
        assert answer.headers["content-type"].startswith(media_type)
        assert answer.headers["content-security-policy"].startswith(f"{demo_page.DEVICE_POLICY}; base-uri 'none'")
    assert 'data-model="device/" data-service' in client.get("/").text
    (folder / "rules.json").write_text("{}")
    with pytest.raises(UserError, match="altered"):
        application(site)


def test_browser_caches_a_file_until_it_changes(client: TestClient) -> None:
    first = client.get("/page.css")
    assert first.headers["cache-control"] == "no-cache"
    for sent in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = client.get("/page.css", headers={"if-none-match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get("/page.css", headers={"if-none-match": '"other"'}).status_code == 200


def test_other_sites_may_load_only_the_box(client: TestClient) -> None:
    name = "cross-origin-resource-policy"
    paths = [path for path in (*PATHS, *DOCS) if client.get(path).headers[name] != "same-origin"]
    assert paths == [f"/{demo_page.BOX}"]


def test_page_has_no_inline_code(tags: Tags) -> None:
    assert tags.inline_code == ""
    names = {name for _, attributes in tags.elements for name in attributes}
    assert {name for name in names if name == "style" or name.startswith("on")} == set()


def test_page_loads_only_its_own_files(tags: Tags) -> None:
    linked = [
        (tag, values[name]) for tag, values in tags.elements for name in ("src", "href", "action") if name in values
    ]
    assert {address for tag, address in linked if tag != "a"} == set(PATHS.values()) - {"index.html"}
    assert {address for tag, address in linked if tag == "a"} == {"docs"}


@pytest.mark.parametrize("name", PATHS.values())
def test_files_reference_no_other_server_and_create_no_markup(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    addresses = set(re.findall(r"""https?://[^\s"'`)>]*|url\([^)]*\)|@import""", text))
    examples = {address for address in addresses if "example.org" in address or address == "https://"}
    assert addresses - examples <= NAMESPACES
    assert not SINKS.search(text)


def test_every_referenced_id_exists(tags: Tags) -> None:
    ids = [values["id"] for _, values in tags.elements if "id" in values]
    assert len(ids) == len(set(ids))
    referenced = {
        word
        for _, values in tags.elements
        for name in ("for", "aria-labelledby", "aria-describedby")
        for word in (values.get(name) or "").split()
    }
    scripts = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("page.js", "saved_texts.js"))
    assert referenced | set(re.findall(r"\$\(\"([\w-]+)\"\)", scripts)) <= set(ids)
