"""The proxy configurations in docs/production/: what they pass on, buffer, and log."""

import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.http.operations import MAX_EXPORT_BYTES
from tests import ROOT
from tests.ports import free_port
from tests.service.listening import listening

pytestmark = pytest.mark.slow

FILES = ROOT / "docs" / "production"
START_TIMEOUT = 60.0  # seconds
SECRET = "qzjqzj"  # must not appear in any log
STRANGE = "a/b?c#d% é.."
NGINX = """daemon off; master_process off; pid {folder}/pid; error_log {folder}/main.log crit;
events {{}}
http {{ client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
{site}
}}"""


def substitute(text: str, **changes: str) -> str:
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


def nginx(folder: Path, port: int, upstream: str) -> list[str]:
    cert = ["-keyout", str(folder / "key"), "-out", str(folder / "cert"), "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *cert], check=True, capture_output=True)
    site = substitute(
        (FILES / "nginx.conf").read_text(encoding="utf-8"),
        **{
            "127.0.0.1:8000": upstream,
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "/etc/ssl/complete.example.pem": f"{folder}/cert",
            "/etc/ssl/complete.example.key": f"{folder}/key",
            "/var/log/nginx/factorcell.log": f"{folder}/error.log",
        },
    )
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, site=site))
    command = ["nginx", "-e", f"{folder}/first.log", "-c", f"{folder}/nginx.conf"]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    return command


def caddy(folder: Path, port: int, upstream: str) -> list[str]:
    site = substitute(
        (FILES / "Caddyfile").read_text(encoding="utf-8"),
        **{
            "{$UPSTREAM:127.0.0.1:8000}": upstream,
            "{$DOMAIN:complete.example} {": f"https://127.0.0.1:{port} {{\n\ttls internal",
            "\tlog {": "\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n\tlog {",
        },
    )
    (folder / "Caddyfile").write_text(site)
    return ["caddy", "run", "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]


PROXIES: dict[str, Callable[[Path, int, str], list[str]]] = {"nginx": nginx, "caddy": caddy}


@contextmanager
def proxied(name: str, folder: Path, upstream: str) -> Iterator[str]:
    port = free_port()
    command = PROXIES[name](folder, port, upstream)
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=home)
        try:
            url, deadline = f"https://127.0.0.1:{port}", time.monotonic() + START_TIMEOUT
            while True:
                try:
                    httpx.get(f"{url}/healthz", verify=False)
                    break
                except httpx.TransportError:
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < deadline, "the proxy does not answer"
                    time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            process.wait(START_TIMEOUT)


@pytest.fixture(params=PROXIES)
def name(request: pytest.FixtureRequest) -> str:
    if not shutil.which(request.param, path="/usr/sbin:/usr/bin") or not shutil.which("openssl"):
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture
def unchecked() -> Iterator[httpx.Client]:
    with httpx.Client(verify=ssl._create_unverified_context(), timeout=START_TIMEOUT) as http:
        yield http


def test_service_works_behind_a_proxy(name: str, service: Service, tmp_path: Path, unchecked: httpx.Client) -> None:
    with (
        listening(application(Site(service, Settings(deadline=5.0, pad=4096)))) as upstream,
        proxied(name, tmp_path, re.sub("^http://|/$", "", upstream)) as url,
    ):
        accept = {"user": STRANGE, "text": "abba"}
        assert unchecked.post(f"{url}/v1/accept", json=accept).json()["outcome"] == "learned"
        shown = unchecked.get(f"{url}/v1/users/{quote(STRANGE, safe='').replace('.', '%2E')}").json()
        assert [item["text"] for item in shown["texts"]] == ["abba"]
        response = unchecked.post(f"{url}/v1/complete", json={"query": "a"}, headers={"Accept-Encoding": "gzip, br"})
        assert "content-encoding" not in response.headers
        assert len(response.content) % 4096 == 0
        for origin, status in ((url, 200), ("https://elsewhere.example", 403)):
            response = unchecked.post(f"{url}/v1/complete", json={"query": "a"}, headers={"Origin": origin})
            assert response.status_code == status
        body = b'{"format": 1, "user": "bob", "paused": false, "texts": []}'.ljust(MAX_EXPORT_BYTES)
        response = unchecked.post(f"{url}/v1/users", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 200
        assert unchecked.get(f"{url}/metrics").status_code == 404


def test_proxy_logs_contain_no_user_data(name: str, service: Service, tmp_path: Path, unchecked: httpx.Client) -> None:
    with listening(application(Site(service, Settings(deadline=5.0)))) as upstream:
        address = re.sub("^http://|/$", "", upstream)
        with proxied(name, tmp_path, address) as url:
            unchecked.post(f"{url}/v1/accept", json={"user": SECRET, "text": SECRET}).raise_for_status()
            assert unchecked.post(f"{url}/v1/complete", json={"query": SECRET}).status_code == 200
    with proxied(name, tmp_path, address) as url:
        assert unchecked.get(f"{url}/v1/users/{SECRET}").status_code == 502
    logs = [path for path in tmp_path.rglob("*log*") if path.is_file()]
    assert logs
    assert not [path for path in logs if SECRET in path.read_text()]
