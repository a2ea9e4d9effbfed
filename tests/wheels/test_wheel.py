"""The source distribution and the wheel, built with and without a C++ compiler, and used outside the checkout.

The test environment contains only the wheel and its requirements, as links to the packages of the current environment,
so that no network is needed.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import ROOT

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"{PROJECT['name']}-{PROJECT['version']}"
NATIVE = "factorcell/nn/kernels/native/"
LIBRARY = "factorcell/nn/kernels/_kernels.so"
SIZES = "--hidden-size 12 --embedding-size 8 --context-size 3 --variable-size 3 --rank 2 --threads 1".split()
QUICK = "--tokenizer char --user user --min-count 1 --min-context-count 1 --epochs 2 --evaluations 1".split()
USER_TEXTS = {"ann": "open the door", "bob": "close the gate"}


@dataclass(frozen=True)
class Installed:
    """The distributions and an environment with the wheel; `compiled`: whether they were built with a compiler."""

    source: Path
    wheel: Path
    folder: Path
    compiled: bool

    def path(self, name: str) -> Path:
        """Return a folder of the environment by its name in sysconfig."""
        base = str(self.folder)
        return Path(sysconfig.get_path(name, "venv", {"base": base, "platbase": base}))

    def run(self, folder: Path, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in `folder`; it must succeed."""
        return run([self.path("scripts") / program, *arguments], folder)


def run(command: list[object], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder` without access to this checkout; it must succeed."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "FACTORCELL_KERNEL")
    env = {name: value for name, value in os.environ.items() if name not in hidden} | variables
    done = subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def required_packages(requirements: Iterable[str], extras: Iterable[str]) -> dict[str, Distribution]:
    """Return the packages of the current environment that the requirements need, directly or indirectly."""
    packages = {}
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            packages[requirement.name] = package = distribution(requirement.name)
            packages |= required_packages(package.requires or (), requirement.extras)
    return packages


def link_packages(packages: Iterable[Distribution], site: Path) -> None:
    """Link all files of packages into another environment, without replacing existing files."""
    for package in packages:
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(str(package.locate_file(name)))


def checkout(copy: Path) -> Path:
    """Copy this checkout without build products, which setuptools would include."""
    ignore = shutil.ignore_patterns("*.egg-info", "*.so", "__pycache__")
    for name in ("benchmarks", "docs", "experiments", "src", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    return copy


@pytest.fixture(scope="module", params=[True, False], ids=["compiler", "no_compiler"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The two distributions, built from this checkout, and an environment with the wheel."""
    pytest.importorskip("build", reason="needs the extra `package`")
    compiled = request.param
    if compiled and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("installed")
    compilers = {} if compiled else {"CC": "false", "CXX": "false"}
    run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", checkout(folder / "copy")],
        folder,
        **compilers,
    )
    [source], [wheel] = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")

    installed = Installed(source, wheel, folder / "environment", compiled)
    venv.create(installed.folder, symlinks=os.name != "nt")
    pip = [sys.executable, "-m", "pip", "--python", installed.path("scripts") / "python", "install", "--no-index"]
    run([*pip, "--no-deps", wheel], folder)
    [package] = distributions(path=[str(installed.path("purelib"))])
    link_packages(required_packages(package.requires or (), []).values(), installed.path("purelib"))
    return installed


def package_files() -> set[str]:
    """Return the files of the package in this checkout, without compiled ones."""
    files = (path for path in (ROOT / "src" / "factorcell").rglob("*") if path.is_file())
    return {path.relative_to(ROOT / "src").as_posix() for path in files if path.suffix not in (".pyc", ".so", ".pyd")}


def test_source_distribution_has_all_files_for_build_and_tests(installed: Installed) -> None:
    with tarfile.open(installed.source) as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    single = {"LICENSE", "MANIFEST.in", "Makefile", "README.md", "constraints.txt", "pyproject.toml"}
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    assert {f"src/{name}" for name in package_files()} | single | tests | {"setup.py", "docs/architecture.md"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_wheel_has_the_package_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(f"{NAME}.dist-info/")}
        assert f"{NAME}.dist-info/licenses/LICENSE" in archive.namelist()
    library = {LIBRARY} if installed.compiled else set()
    assert names == {name for name in package_files() if not name.startswith(NATIVE)} | library
    assert {"factorcell/py.typed", "factorcell/assets/NOTICE.md", "factorcell/reports/templates/layout.html"} <= names
    assert installed.wheel.name.startswith(f"{NAME}-py3-none-")
    assert installed.wheel.name.endswith("-any.whl") != installed.compiled


def test_installed_package_trains_scores_and_completes(installed: Installed, tmp_path: Path) -> None:
    path = installed.run(tmp_path, "python", "-c", "import factorcell; print(factorcell.__file__)").stdout
    assert path.startswith(str(installed.path("purelib")))
    rows = [
        f"{text} {when},{user}" for user, text in USER_TEXTS.items() for when in ("now", "later") for _ in range(40)
    ]
    (tmp_path / "texts.csv").write_text("\n".join(["text,user", *rows]) + "\n", encoding="utf-8")

    train = ["train", "texts.csv", "--dev", "texts.csv", "--out", "run", *QUICK, *SIZES]
    score = ["score", "run", "texts.csv", "--json"]
    complete = ["complete", "run", "op", "--context", "user=ann", "--json"]
    trained, scored, completed = (installed.run(tmp_path, "factorcell", *words) for words in (train, score, complete))
    for done in (trained, scored, completed):
        warnings = [line for line in done.stderr.splitlines() if "no compiled kernels" in line]
        assert len(warnings) == (0 if installed.compiled else 1), done.stderr
    assert " on the development texts" in trained.stderr
    nats = [json.loads(line)["nats"] for line in scored.stdout.splitlines()]
    assert len(nats) == len(rows)
    assert all(map(math.isfinite, nats))
    texts = [json.loads(line)["text"] for line in completed.stdout.splitlines()]
    assert texts
    assert all(text.startswith("op") for text in texts)
