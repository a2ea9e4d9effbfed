"""The container of docs/production.md: its files agree with the commands, and its steps run, in an engine if one works.

The slow test needs an image of Python, FACTORCELL_TEST_BASE or python:3.11-slim, that podman or docker can run.
Without one it carries out the steps of the Containerfile one by one, in a folder instead of an image.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
import yaml

from factorcell.commands.cli.main import main
from tests import ROOT
from tests.ports import free_port
from tests.service.runs import make_run

BASE = os.environ.get("FACTORCELL_TEST_BASE", "python:3.11-slim")
# Options of this machine's engine, such as the folder of its packages.
BUILD_OPTIONS = os.environ.get("FACTORCELL_TEST_BUILD", "").split()
RUN_OPTIONS = os.environ.get("FACTORCELL_TEST_RUN", "").split()
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICE = COMPOSE["services"]["service"]
COMMAND = SERVICE["command"]


def expand(value: str) -> str:
    """Replace `${NAME:-default}` by the default, as compose does for a variable that is not set."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)


def test_command_names_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--port", "0"]) == 2
    assert "/data/keys.toml: there is no such file" in capsys.readouterr().err  # the first thing that is missing here


def test_service_is_confined_and_keeps_its_data_in_a_volume() -> None:
    assert SERVICE["read_only"]
    assert SERVICE["cap_drop"] == ["ALL"]
    assert re.findall(r"^USER (\d+)", CONTAINERFILE, re.MULTILINE) == ["10001"]
    assert "data:/data" in SERVICE["volumes"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICE["ports"]), "only the proxy is reached from outside"
    assert expand(SERVICE["environment"]["FACTORCELL_STORE"]) == "sqlite:////data/users.db"
    assert {name for name, service in COMPOSE["services"].items() if "profiles" not in service} == {"service"}


class Container:
    """The image, built and run by an engine."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.engine, self.models, self.data = engine, folder / "models", folder / "data"
        self.image, self.name = "localhost/factorcell:test", f"factorcell-{os.getpid()}"
        options = ["--build-arg", f"BASE={BASE}", *BUILD_OPTIONS]
        if "TORCH_INDEX" in os.environ:
            options += ["--build-arg", f"TORCH_INDEX={os.environ['TORCH_INDEX']}"]
        subprocess.run([engine, "build", "-f", "Containerfile", "-t", self.image, *options, "."], cwd=ROOT, check=True)
        self.data.mkdir()
        self.data.chmod(0o777)  # the user of the container is another one

    def command(self, arguments: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        volumes = ["-v", f"{self.models}:/models:ro", "-v", f"{self.data}:/data"]
        confined = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "host", *RUN_OPTIONS]
        return [self.engine, "run", "--rm", *confined, *volumes, *options, self.image, *arguments]

    def start(self, port: int) -> subprocess.Popen[bytes]:
        command = self.command([*COMMAND, "--port", str(port)], ["--name", self.name])
        return subprocess.Popen(command)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        subprocess.run([self.engine, "stop", "-t", "40", self.name], check=True, capture_output=True)
        process.wait(60)

    def run(self, arguments: Sequence[str]) -> str:
        return subprocess.run(self.command(arguments), check=True, stdout=subprocess.PIPE, text=True).stdout


class Folder:
    """The steps of the Containerfile, one by one, with a folder in place of the image's root."""

    def __init__(self, folder: Path) -> None:
        self.models, self.data, self.root = folder / "models", folder / "data", folder / "root"
        source = self.root / "src"
        shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for name in re.findall(r"^!([\w.]+\.\w+|LICENSE)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE):
            shutil.copy(ROOT / name, source / name)
        environment = {"TORCH_INDEX": "", **os.environ, "PATH": f"{self.root}/opt/factorcell/bin:{os.environ['PATH']}"}
        build = CONTAINERFILE.split("\nFROM ")[1]
        for step in re.findall(r"^RUN (.*)$", build, re.MULTILINE):
            if not step.startswith("apt-get"):  # a compiler, which the tests have
                step = step.replace("/opt/factorcell", f"{self.root}/opt/factorcell")
                subprocess.run(["bash", "-ec", step], cwd=source, env=environment, check=True)
        self.data.mkdir()

    def command(self, arguments: Sequence[str]) -> list[str]:
        places = {"/models": str(self.models), "/data": str(self.data)}
        moved = [re.sub(r"^/(models|data)", lambda match: places[match[0]], word) for word in arguments]
        return [f"{self.root}/opt/factorcell/bin/factorcell", *moved]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "FACTORCELL_STORE": f"sqlite:///{self.data}/users.db", "PYTHONPATH": ""}

    def start(self, port: int) -> subprocess.Popen[bytes]:
        command = self.command([*COMMAND, "--port", str(port)])
        return subprocess.Popen(command, env=self.environment(), cwd=self.data)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        process.wait(60)

    def run(self, arguments: Sequence[str]) -> str:
        return subprocess.run(
            self.command(arguments),
            env=self.environment(),
            cwd=self.data,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Container | Folder]:
    for name, seed in (("2026-12", 0), ("2027-01", 1)):
        make_run(tmp_path / "models" / name, seed)
    link(tmp_path / "models", "2026-12")
    for engine in filter(shutil.which, ("podman", "docker")):
        if not subprocess.run([engine, "run", "--rm", *RUN_OPTIONS, BASE, "true"], capture_output=True).returncode:
            yield Container(engine, tmp_path)
            return
    yield Folder(tmp_path)


def link(models: Path, name: str) -> None:
    """Let the link `current` name a model, in one step as `mv -T` does."""
    (models / "next").symlink_to(name)
    (models / "next").replace(models / "current")


def wait_until(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for what the health check of compose.yaml asks."""
    code = SERVICE["healthcheck"]["test"][-1].replace("http://127.0.0.1:8000", url)
    deadline = time.monotonic() + 60
    while subprocess.run([sys.executable, "-c", code], capture_output=True).returncode:
        assert process.poll() is None, "the service has ended"
        assert time.monotonic() < deadline, "the service is not ready"
        time.sleep(0.2)


def served_models(http: httpx.Client) -> float:
    """Return how many new models the service has switched to."""
    counts = re.findall(r'^factorcell_models_total\{outcome="served"\} (.*)$', http.get("/metrics").text, re.MULTILINE)
    return float(counts[0]) if counts else 0.0


@pytest.mark.slow
def test_deployment_from_build_to_deletion(deployment: Container | Folder) -> None:
    scopes = ["--scope", "complete", "--scope", "learn", "--scope", "admin"]
    key = deployment.run(["users", "key", "shop", "--keys", "/data/keys.toml", *scopes]).strip()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = deployment.start(port)
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        wait_until(url, process)
        assert http.post("/v1/accept", json={"user": "ann", "text": "abba"}).json()["outcome"] == "learned"
        for name in ("2027-01", "2026-12"):  # a new model, and back
            count = served_models(http)
            link(deployment.models, name)
            deadline = time.monotonic() + 30
            while served_models(http) == count:
                assert time.monotonic() < deadline, "the new model is not served"
                time.sleep(0.2)
            assert http.post("/v1/complete", json={"user": "ann", "query": "a"}).json()["degraded"] is None
        deployment.stop(process)
        process = deployment.start(port)  # as a new version is started
        wait_until(url, process)
    assert json.loads(deployment.run(["users", "export"]))["texts"][0]["text"] == "abba"
    deployment.run(["users", "delete", "ann"])
    assert deployment.run(["users", "export"]) == ""
    deployment.stop(process)
