"""The page of all options, from the config itself: `python docs/options.py` writes options.md anew."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from factorcell import Config
from factorcell.choices import CHOSEN

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Options

Every option of `factorcell train`, by section of a TOML file.
On the command line an option `min_count` is `--min-count`.
`compare`, `tune`, `finetune`, `separate` and `advise` take those that they need.

What is not said [is chosen](training.md#what-is-not-said-is-chosen) where the default is "by the table".
The last column is what a `Config` of Python has then, of which nothing is chosen.
`python docs/options.py` writes this page.
"""


def page() -> str:
    """A table for each section of the config."""
    tables = ("\n".join(_section(field)) for field in dataclasses.fields(Config))
    return "\n".join([HEAD, "<!-- options -->", "", *tables, "<!-- end of options -->", ""])


def _section(section: dataclasses.Field[Any]) -> Iterator[str]:
    """The heading and the table of a section."""
    yield from (f"## {section.name}", "", "| option | meaning | default | in a `Config` |", "|---|---|---|---|")
    for field in dataclasses.fields(section.default):  # type: ignore[arg-type]
        meaning = field.metadata["help"]
        if field.metadata["choices"]:
            meaning += f" ({', '.join(field.metadata['choices'])})"
        plain = _shown(field.default)
        default = "by the table" if field.name in CHOSEN.get(section.name, ()) else plain
        yield f"| `{field.name}` | {meaning.replace('|', chr(92) + '|')} | {default} | {plain} |"
    yield ""


def _shown(value: Any) -> str:
    """A default as a table shows it."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "by unit"}[value]
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
