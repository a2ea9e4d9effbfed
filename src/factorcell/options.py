"""Command-line options from the fields of the config: each option is written once, in `config.py`."""

import argparse
import dataclasses
import types
import typing
from typing import Any

from factorcell.config import Config, choose


def add(parser: argparse.ArgumentParser) -> None:
    """Add an option for every field of every section; one that is not given leaves no trace."""
    for section in dataclasses.fields(Config):
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


def config(given: argparse.Namespace) -> Config:
    """The config of a command: that of its file, then its named model, then its own options."""
    base = Config.load(given.config) if getattr(given, "config", None) else Config()
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
