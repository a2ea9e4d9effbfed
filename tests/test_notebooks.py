"""The notebooks under examples/: their code runs in a new process, and their outputs are not stored."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^()\s]+)\)")


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    """Return the cells of a kind: `code` or `markdown`."""
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_has_no_outputs_and_valid_links(notebook: Path) -> None:
    code = cells(notebook, "code")
    assert code
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
    links = [link for cell in cells(notebook, "markdown") for link in LINK.findall("".join(cell["source"]))]
    paths = [link for link in links if not link.startswith("https://")]
    assert paths
    assert not [path for path in paths if not (notebook.parent / path).is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_code_of_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    code = ["".join(cell["source"]) for cell in cells(notebook, "code")]
    (tmp_path / "code.py").write_text("\n\n".join([*code, "print('end of the notebook')"]), encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "code.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("end of the notebook\n")
