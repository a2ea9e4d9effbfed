"""The page of all options, from the config itself: `python docs/options.py` writes options.md anew."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from factorcell.choices import AUTOMATIC_OPTIONS
from factorcell.config import section_types
from factorcell.option_fields import KIND_HELP, OPTION_KINDS

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Options

Every option of `factorcell train`, by section of a TOML file.
On the command line an option `min_count` is `--min-count`, and the options `kind` are `--tokenizer`, `--backbone` and
`--head`.
`compare`, `tune`, `finetune`, `separate` and `advise` take those that they need.

The kinds of the sections `tokenizer`, `backbone` and `head` have different options; the tables name the kinds that have
an option, if it is not all.
Other packages can add kinds with options of their own ([extending](extending.md)).

An option that is not set [is chosen](training.md#what-is-not-said-is-chosen) where the default is "by the table".
The last column is the value in a `Config` of Python, where nothing is chosen.
`python docs/options.py` writes this page.
"""


def page() -> str:
    """A table for each section of the config."""
    tables = ("\n".join(_section(name)) for name in section_types())
    return "\n".join([HEAD, "<!-- options -->", "", *tables, "<!-- end of options -->", ""])


def _section(section: str) -> Iterator[str]:
    """Yield the heading and the table of a section, of all its kinds."""
    kinds = OPTION_KINDS.get(section, {"": section_types()[section]})
    yield from (f"## {section}", "", "| option | meaning | default | in a `Config` |", "|---|---|---|---|")
    fields: dict[str, dict[str, dataclasses.Field[Any]]] = {}
    for kind, options in kinds.items():
        for field in dataclasses.fields(options):
            fields.setdefault(field.name, {})[kind] = field
    for name, by_kind in fields.items():
        first = next(iter(by_kind.values()))
        choices = tuple(kinds) if name == "kind" else first.metadata["choices"]
        meaning = KIND_HELP[section] if name == "kind" else first.metadata["help"]
        meaning += f" ({', '.join(choices)})" if choices else ""
        meaning += f"; only {', '.join(by_kind)}" if len(by_kind) < len(kinds) else ""
        plain = _shown(first.default) if name == "kind" else _shown_by_kind(by_kind)
        default = "by the table" if name in AUTOMATIC_OPTIONS.get(section, ()) else plain
        yield f"| `{name}` | {meaning.replace('|', chr(92) + '|')} | {default} | {plain} |"
    yield ""


def _shown_by_kind(fields: dict[str, dataclasses.Field[Any]]) -> str:
    """Return the default of a field, after the kinds that have it where these differ."""
    kinds: dict[str, list[str]] = {}
    for kind, field in fields.items():
        kinds.setdefault(_shown(field.default), []).append(kind)
    return next(iter(kinds)) if len(kinds) == 1 else "; ".join(f"{', '.join(of)}: {how}" for how, of in kinds.items())


def _shown(value: Any) -> str:
    """Return a default as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
