"""Generate the page of all options from the config: `python docs/options.py` writes options.md."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from factorcell.config import KIND_HELP, OPTION_KINDS, option_fields, section_types
from factorcell.options.limits import AUTOMATIC_OPTIONS

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Options

This page is for users who configure a training: it lists all options of `factorcell train`, by section of a TOML file.
On the command line the option `min_count` is `--min-count`, and the option `kind` of a section is `--tokenizer`,
`--backbone` or `--head`.
A repeatable option is a list in TOML and in Python.
If a repeatable option has a fixed set of choices, `none` stands for an empty list.
`compare`, `tune`, `finetune` and `advise` accept only the options that they need.

The kinds of a tokenizer, backbone or head have different options; if an option does not exist for all kinds, the table
names the kinds that have it.
Other packages can add kinds with their own options ([extending](extending.md)).

"Automatic" means that `train` [chooses the value](training.md#automatic-options) from the training table.
The last column is the default of a `Config` in Python; a `Config` never chooses a value automatically.
`python docs/options.py` generates this page.
"""


def page() -> str:
    """Return the page: a table for each section of the config."""
    tables = ("\n".join(_section(name)) for name in section_types())
    return "\n".join([HEAD, "<!-- options -->", "", *tables, "<!-- end of options -->", ""])


def _section(section: str) -> Iterator[str]:
    """Yield the heading and the table of a section, with the options of all its kinds."""
    kinds = OPTION_KINDS.get(section, {"": section_types()[section]})
    yield from (f"## {section}", "", "| option | meaning | default | in a `Config` |", "|---|---|---|---|")
    fields: dict[str, dict[str, dataclasses.Field[Any]]] = {}
    for kind, options in kinds.items():
        for field in option_fields(options):
            fields.setdefault(field.name, {})[kind] = field
    for name, by_kind in fields.items():
        first = next(iter(by_kind.values()))
        choices = tuple(kinds) if name == "kind" else first.metadata["choices"]
        meaning = KIND_HELP[section] if name == "kind" else first.metadata["help"]
        is_explained = all(f"{choice}:" in meaning for choice in choices)
        meaning += "" if is_explained else f" ({', '.join(choices)})"
        meaning += f"; only {', '.join(by_kind)}" if len(by_kind) < len(kinds) else ""
        default = _format(first.default) if name == "kind" else _format_by_kind(by_kind)
        is_automatic = name in AUTOMATIC_OPTIONS.get(section, ())
        shown = "automatic" if is_automatic else default
        yield f"| `{name}` | {meaning.replace('|', chr(92) + '|')} | {shown} | {default} |"
    yield ""


def _format_by_kind(fields: dict[str, dataclasses.Field[Any]]) -> str:
    """Format the default of a field, preceded by the names of the kinds if they have different defaults."""
    kinds: dict[str, list[str]] = {}
    for kind, field in fields.items():
        kinds.setdefault(_format(field.default), []).append(kind)
    return (
        next(iter(kinds))
        if len(kinds) == 1
        else "; ".join(f"{', '.join(names)}: {value}" for value, names in kinds.items())
    )


def _format(value: Any) -> str:
    """Format a default for a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
