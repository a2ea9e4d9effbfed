"""The demo page, which a service or a static host serves, and the run time with which it completes on a device.

`index.html` is a template: `has_service` is whether a service answers the page, and `model` is the address of an
exported model relative to the page, or empty. `make web` builds the run time.
"""

from importlib import resources
from pathlib import Path

import jinja2

from factorcell.completion.device import FORMAT, MODEL, RULES, WEIGHTS
from factorcell.data.counts import POPULARITY
from factorcell.errors import UserError
from factorcell.io import files

FOLDER = Path(str(resources.files("factorcell"))) / "service"
INDEX, RUNTIME = "index.html", "runtime"
BOX = "factorcell.js"  # the script of the search box, which other sites may load
PAGE_FILES = (INDEX, "page.css", "page.js", "saved_texts.js", "chart.js", BOX, "icon.svg")
# The content security policy of a page that runs compiled code in a worker: all files are from the server of the page.
DEVICE_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self'"
)


def page_files(model: str = "", has_service: bool = True) -> dict[str, bytes]:
    """Return the content of the files of the page by name."""
    contents = {name: (FOLDER / "page" / name).read_bytes() for name in PAGE_FILES}
    template = jinja2.Template(contents[INDEX].decode(), autoescape=True, trim_blocks=True)
    index = template.render(model=model, has_service=has_service, policy=DEVICE_POLICY)
    return contents | {INDEX: f"{index}\n".encode()}


def has_runtime() -> bool:
    """Return whether this installation has the run time of a device."""
    return (FOLDER / RUNTIME / "index.js").exists()


def export_page(folder: Path) -> None:
    """Write the page and the run time into the folder of an exported model, which any static host can then serve."""
    runtime = {f"{RUNTIME}/{path.name}": path.read_bytes() for path in sorted((FOLDER / RUNTIME).iterdir())}
    (folder / RUNTIME).mkdir()
    for name, content in (page_files("./", has_service=False) | runtime).items():
        files.write(folder / name, content)


def device_files(folder: Path) -> dict[str, bytes]:
    """Return the content of the model and the run time in an exported folder, by their paths in it."""
    scripts = [f"{RUNTIME}/{path.name}" for path in sorted((folder / RUNTIME).glob("*.*"))]
    if f"{RUNTIME}/index.js" not in scripts:
        raise UserError(f"{folder}: expected a folder of `factorcell export --to web` with the run time of a device")
    entries = files.read_versioned(folder / MODEL, FORMAT)["files"]
    files.check_digests(folder, {name: entries[name]["sha256"] for name in (WEIGHTS, POPULARITY, RULES)})
    return {name: (folder / name).read_bytes() for name in (MODEL, WEIGHTS, POPULARITY, RULES, *scripts)}
