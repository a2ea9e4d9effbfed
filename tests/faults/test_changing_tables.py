"""Files that change while they are read."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factorcell.config import Config
from factorcell.data import preparation
from factorcell.data.preparation import TokenizedTexts, prepare
from factorcell.data.tables import chunks
from factorcell.errors import UserError

CONFIG = Config.of(
    context=("city:category", "lat:number", "said:text", "place:vector"),
    user="who",
    tokenizer="char",
    min_count=1,
    min_context_count=1,
    min_user_count=1,
)
ROWS = [
    {
        "text": f"text {number % 7} of many",
        "city": "AB"[number % 2],
        "lat": number,
        "said": "the sea",
        "place": [number, 1.5],
        "who": f"user {number % 5}",
    }
    for number in range(400)
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write `rows` as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """`ROWS` as a file."""
    return write(tmp_path / "rows.jsonl", ROWS)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "rewritten": lambda path: write(path, [{**row, "text": "other"} for row in ROWS]),
    "replaced": lambda path: write(path.with_name("new"), ROWS[::-1]).replace(path),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["before the first chunk", "after a chunk"])
def test_a_table_that_changes_while_it_is_read_is_refused(
    change: str, moment: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 16)
    owner, name = (preparation, "ContextColumns") if moment == "before the first chunk" else (TokenizedTexts, "add")
    original = getattr(owner, name)

    def change_table(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        result = original(*arguments)
        CHANGES[change](table)
        return result

    monkeypatch.setattr(owner, name, change_table)
    with pytest.raises(
        UserError, match=r"rows\.jsonl" if moment == "after a chunk" else r"No such file|changed while it"
    ) as error:
        prepare(table, CONFIG)
    assert "\n" not in str(error.value)
