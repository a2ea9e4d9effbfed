"""The examples of docs/service.md, run against a server: all curl commands, and the Python code."""

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
THIS_FILE = f"tests/service/http/{Path(__file__).name}"


def documented(language: str, address: str = ADDRESS) -> list[str]:
    text = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    lines = text.split("\n")

    def is_tested_here(block: Block) -> bool:
        return block.language == language and THIS_FILE in lines[block.line - 3]

    return [block.code.replace(ADDRESS, address) for block in blocks(text) if is_tested_here(block)]


def test_every_curl_command_succeeds(url: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (code,) = documented("bash", url.rstrip("/"))
    script = f"set -eu\n{CURL}\n{code}"
    result = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert '"outcome":"learned"' in result.stdout


def test_every_route_has_a_curl_command() -> None:
    (code,) = documented("bash")
    commands = re.split(r"\n(?=curl )", code.replace("\\\n", ""))
    requests = set()
    for command in commands:
        path = re.sub(r"^/v1/users/[^/]+", "/v1/users/{user}", re.findall(rf"{ADDRESS}(/[^\s'?]*)", command)[0])
        method = re.search("-X ([A-Z]+)", command)
        requests.add((method[1] if method else "POST" if " -d " in command else "GET", path))
    others = {("GET", path) for path in ("/healthz", "/metrics", "/openapi.json")}
    assert requests == {(operation.method, operation.path) for operation in OPERATIONS} | others


@pytest.mark.parametrize("code", documented("python"))
def test_python_examples_run(url: str, capsys: pytest.CaptureFixture[str], code: str) -> None:
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(code.replace(ADDRESS, url), "service.md", "exec"), names)
    assert capsys.readouterr().out
