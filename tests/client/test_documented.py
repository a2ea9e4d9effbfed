"""What docs/service.md asks a server, asked: every curl line, and the client's lines of Python."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from factorcell.service.http.operations import OPERATIONS
from tests import ROOT
from tests.test_docs import Block, blocks

ADDRESS = "http://127.0.0.1:8000"
CURL = 'curl() { command curl --silent --show-error --fail-with-body --noproxy "*" "$@"; }'
HERE = f"tests/client/{Path(__file__).name}"


def documented(language: str, address: str = ADDRESS) -> list[str]:
    text = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    lines = text.split("\n")

    def is_ours(block: Block) -> bool:
        return block.language == language and HERE in lines[block.line - 3]

    return [block.code.replace(ADDRESS, address) for block in blocks(text) if is_ours(block)]


def test_every_curl_line_is_answered(url: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (code,) = documented("bash", url.rstrip("/"))
    script = f"set -eu\n{CURL}\n{code}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert '"outcome":"learned"' in done.stdout
    assert '"done":true' in done.stdout


def test_every_route_has_a_curl_line() -> None:
    (code,) = documented("bash")
    commands = re.split(r"\n(?=curl )", code.replace("\\\n", ""))
    asked = set()
    for command in commands:
        path = re.sub(r"^/v1/users/[^/]+", "/v1/users/{user}", re.findall(rf"{ADDRESS}(/[^\s'?]*)", command)[0])
        given = re.search("-X ([A-Z]+)", command)
        asked.add((given[1] if given else "POST" if " -d " in command else "GET", path))
    others = {("GET", path) for path in ("/healthz", "/metrics", "/openapi.json")}
    assert asked == {(one.method, one.path) for one in OPERATIONS} | others


@pytest.mark.parametrize("code", documented("python"))
def test_lines_of_python(url: str, capsys: pytest.CaptureFixture[str], code: str) -> None:
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(code.replace(ADDRESS, url), "service.md", "exec"), names)
    assert capsys.readouterr().out
