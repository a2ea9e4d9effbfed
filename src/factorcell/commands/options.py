"""Command-line options from the fields of the config, each written once in `config.py`, and those that verbs share."""

import argparse
import dataclasses
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from factorcell.config import DEVICES, PRECISIONS, Config, UserError, choose
from factorcell.training import distributed


def add(parser: argparse.ArgumentParser, sections: Sequence[str] = ("data", "model", "training")) -> None:
    """Add an option for every field of the sections; one that is not given leaves no trace."""
    for section in dataclasses.fields(Config):
        if section.name not in sections:
            continue
        group = parser.add_argument_group(section.name)
        kind: Any = section.type
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            _add_field(group, field, hints[field.name])


def _add_field(group: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    flag = "--" + field.name.replace("_", "-")
    text = field.metadata["help"].replace("%", "%%")
    choices = field.metadata["choices"] or None
    common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
    if typing.get_origin(hint) is types.UnionType:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if hint is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text, **common)
    elif typing.get_origin(hint) is tuple:
        names = f"{{none,{','.join(choices)}}}" if choices else "NAME"
        group.add_argument(flag, action="append", help=text, metavar=names, **common)
    else:
        shown = f"{text} (default: {field.default})"
        metavar = None if choices else hint.__name__.upper()
        group.add_argument(flag, type=hint, choices=choices, help=shown, metavar=metavar, **common)


def config(given: argparse.Namespace, base: Config | None = None) -> Config:
    """The config of a command: that of its file or `base`, then its named model, then its own options."""
    base = Config.load(given.config) if getattr(given, "config", None) else base or Config()
    if getattr(given, "model", None):
        base = base.with_model(given.model)
    sections = {}
    for section in dataclasses.fields(Config):
        part = getattr(base, section.name)
        own = {
            field.name: _value(field, getattr(given, field.name))
            for field in dataclasses.fields(part)
            if hasattr(given, field.name)
        }
        if "unit" in own and "lowercase" not in own:
            own["lowercase"] = None  # follows the unit
        sections[section.name] = dataclasses.replace(part, **own)
    return Config(**sections)


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
    """A list without `none`, which stands for an empty one."""
    if not isinstance(value, list):
        return value
    valid = field.metadata["choices"]
    names = [name for name in value if not (valid and name == "none")]
    for name in names:
        if valid:
            choose(field.name, name, valid)
    return tuple(names)


def verb(verbs: Any, name: str, function: Any, text: str) -> argparse.ArgumentParser:
    """A verb of the command line, which calls `function` with what was given."""
    made: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    made.set_defaults(verb=function)
    return made


def training_files(verb: argparse.ArgumentParser) -> None:
    """Add what a training reads."""
    verb.add_argument("train", type=Path, metavar="TRAIN", help="table of texts: CSV, TSV, JSONL or Parquet")
    verb.add_argument("--dev", type=Path, help="development table (default: 5 %% of the rows are held out)")
    verb.add_argument("--config", type=Path, help="TOML or JSON file of options; those given here win")


def unknown(verb: argparse.ArgumentParser) -> None:
    """Add what to do with a context value that was never seen."""
    verb.add_argument(
        "--unknown",
        default="error",
        choices=("error", "group", "expected"),
        help="a value never seen: an error, a rare value, or a missing one",
    )


def computing(verb: argparse.ArgumentParser) -> None:
    """Add how texts are scored and what is shown of it."""
    unknown(verb)
    verb.add_argument("--json", action="store_true", help="print rows of JSON")
    verb.add_argument("--threads", type=int, default=0, help="threads; 0: all cores")
    verb.add_argument("--device", default="auto", choices=DEVICES, help="where to compute; auto: a GPU if there is one")
    verb.add_argument("--precision", default="float32", choices=PRECISIONS, help="numbers in matrix products")


def threads(count: int) -> None:
    """Compute with so many threads; 0: with this process's share of the cores."""
    torch.set_num_threads(count or distributed.cores())


def add_context(verb: argparse.ArgumentParser) -> None:
    """Add the context of texts, a column at a time."""
    verb.add_argument(
        "--context",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a context column (repeatable; one that is not given is expected)",
    )


def context(given: Sequence[str], option: str = "--context") -> dict[str, str]:
    """`NAME=VALUE` of every column, as `option` gave them."""
    context: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{option} {text!r}: it must be NAME=VALUE")
        if name in context:
            raise UserError(f"{option} {name} is given twice")
        context[name] = value
    return context
