"""Options of the command line that several commands share, among them an option for each field of the config."""

import argparse
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli.parser import Parser
from factorcell.config import (
    DEFAULT_KINDS,
    EXTENSIBLE,
    KIND_HELP,
    OPTION_KINDS,
    TRANSFORMER_OPTIONS,
    Config,
    HuggingFaceOptions,
    option_fields,
    options_by_section,
    section_types,
    selected_kinds,
)
from factorcell.errors import UserError
from factorcell.io import memory
from factorcell.options.extensions import NONE
from factorcell.options.limits import AUTOMATIC_OPTIONS, Limits

if TYPE_CHECKING:
    from factorcell.runs.run import Run

# Options of a config that --help shows; --help-all shows all. Options of kinds in other packages are always shown.
COMMON_OPTIONS = (
    *("text", "context", "user", "time", "max_tokens", "min_context_count"),
    *("tokenizer", "base", "rank", "hidden_size", "epochs", "seed", "threads", "device"),
)


def add_config_options(parser: Parser, *sections: str, run_defaults: Mapping[str, Any] | None = None) -> None:
    """Add an option for every field of the sections (default: all); unspecified options are absent after parsing.

    The help shows the default of each field. If `run_defaults` is passed, the help shows the defaults in it, and
    "as in RUN" for all other fields. `Config` checks the choices, because other packages may add some.
    """
    if not sections or "training" in sections:
        parser.add("--max-memory")
    kinds = kinds_from_words(parser.words)
    classes = section_types(kinds)
    fields = [(section, field) for section in sections or classes for field in option_fields(classes[section])]
    if not sections:
        # With one of these options, `kinds_from_words` selects the backbone that has them; here they are only help.
        names = {*TRANSFORMER_OPTIONS} - {field.name for _, field in fields}
        fields += [("backbone", field) for field in option_fields(HuggingFaceOptions) if field.name in names]
    option_names = ["config", "model"]
    for section, field in fields:
        name = section if field.name == "kind" else field.name
        option_names.append(name)
        is_built_in = kinds.get(section) in (None, *OPTION_KINDS.get(section, ()))
        is_rare = is_built_in and name not in COMMON_OPTIONS
        settings: dict[str, Any] = {"section": section, "rare": is_rare, "default": argparse.SUPPRESS}
        if field.name == "kind":
            default: Any = DEFAULT_KINDS[section]
            choices = (*OPTION_KINDS[section], *EXTENSIBLE[section].registered, kinds.get(section, default))
            help_text = f"{KIND_HELP[section]}; packages may add names (default: {default})"
            parser.add(f"--{section}", metavar=_placeholder(dict.fromkeys(choices)), help=help_text, **settings)
            continue
        default = "automatic" if name in AUTOMATIC_OPTIONS.get(section, ()) else field.default
        if run_defaults is not None:
            default = run_defaults.get(name, "as in RUN")
        elif name in TRANSFORMER_OPTIONS:
            default = default or "none, recurrent layers"
        _add_field(partial(parser.add, **settings), field, default)
    parser.optional.set_defaults(option_names=option_names)


def _add_field(add: Callable[..., None], field: dataclasses.Field[Any], default: Any) -> None:
    """Add the option of a field of the config with `add`; its help shows `default`."""
    metadata = field.metadata
    option_type: type = type(field.default)
    help_text = metadata.get("help", "option of another package")
    if default not in ("", ()) and not isinstance(default, bool):
        help_text += f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
    settings: dict[str, Any] = {"type": str, "metavar": "TEXT"}
    if option_type is bool:
        settings = {"action": argparse.BooleanOptionalAction}
    elif option_type is tuple:
        settings = {"repeatable": True}
    elif option_type is not str:
        settings = {"limits": metadata.get("limits") or Limits(-math.inf, math.inf, whole=option_type is int)}
    if choices := metadata.get("choices"):
        settings["metavar"] = _placeholder((NONE, *choices) if option_type is tuple else choices)
    elif metavar := metadata.get("metavar"):
        settings["metavar"] = metavar
    add(f"--{field.name.replace('_', '-')}", help=help_text, **settings)


def _placeholder(choices: Iterable[str]) -> str:
    return f"{{{','.join(choices)}}}"


def kinds_from_words(words: Sequence[str]) -> dict[str, str]:
    """Return the kinds of tokenizer, backbone and head that a command line selects, or else its --config file."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in (*OPTION_KINDS, "config", *TRANSFORMER_OPTIONS):
        parser.add_argument(f"--{name}", nargs="?", const="")
    values = vars(parser.parse_known_args(words)[0])
    kinds = {section: kind for section, kind in values.items() if section in OPTION_KINDS}
    with suppress(UserError, OSError):  # the config reports the errors
        kinds |= selected_kinds(options_by_section(values))
    return kinds


def option_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a training that a command line specifies, by name, with its --config and --model."""
    return {name: getattr(arguments, name) for name in arguments.option_names if hasattr(arguments, name)}


def selected(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of some arguments by name, for a function that has parameters of these names."""
    return {name: getattr(arguments, name) for name in names}


def prepare_training(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Set the number of threads that a training command specifies; return its config options by section."""
    specified = options_by_section(option_values(arguments), minutes=getattr(arguments, "minutes", None))
    set_threads(Config.from_dict(specified).training.threads)
    return specified


def open_run(arguments: argparse.Namespace) -> "Run":
    """Open the run folder of a command as its options of computing specify."""
    from factorcell.runs.run import Run

    mixture = not getattr(arguments, "no_ngram_mixture", False)
    return Run.open(arguments.run, mixture=mixture, device=arguments.device, precision=arguments.precision)


def set_threads(count: int) -> None:
    """Set the number of threads; 0: one per core."""
    import torch

    torch.set_num_threads(count or memory.usable_cores())


def parse_context(run: "Run | None", texts: Sequence[str], option: str = "--context") -> dict[str, str]:
    """Return a context, column -> value, from texts as in `parse_context_values`."""
    values = parse_context_values(run, texts, option)
    for name, values_of_column in values.items():
        if len(values_of_column) > 1:
            actual = " and ".join(map(repr, values_of_column))
            raise UserError(f"{option}: expected one value of {name}, got {actual}")
    return {name: value for name, (value,) in values.items()}


def parse_context_values(run: "Run | None", texts: Sequence[str], option: str = "--context") -> dict[str, list[str]]:
    """Return the distinct values of each column from texts `NAME=VALUE; NAME=VALUE`; errors begin with `option`.

    NAME ends before the first equals sign, or is a column of `run`.
    """
    values: dict[str, list[str]] = {}
    columns = () if run is None else run.schema.columns()
    # A semicolon is part of a value unless another NAME= follows it.
    for part in itertools.chain.from_iterable(re.split(r";\s*(?=[^;=]+=)", text) for text in texts):
        name, equals, value = part.partition("=")
        if column := max((column for column in columns if part.startswith(f"{column}=")), key=len, default=""):
            name, value = column, part[len(column) + 1 :]
        if not equals or not name:
            raise UserError(f"{option}: expected NAME=VALUE, got {part!r}")
        values.setdefault(name, [])
        if value not in values[name]:
            values[name].append(value)
    return values
