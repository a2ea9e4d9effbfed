"""Options of the command line that several commands share, among them an option for each field of the config."""

import argparse
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli.parser import Parser, Section
from factorcell.config import (
    DEFAULT_KINDS,
    DEVICE_HELP,
    DEVICES,
    EXTENSIBLE,
    KIND_HELP,
    OPTION_KINDS,
    PRECISION_HELP,
    PRECISIONS,
    TRANSFORMER_OPTIONS,
    Config,
    HuggingFaceOptions,
    option_fields,
    option_types,
    options_by_section,
    section_types,
    selected_kinds,
)
from factorcell.errors import UserError
from factorcell.io import memory
from factorcell.io.findings import Finding, report
from factorcell.options.extensions import NONE
from factorcell.options.limits import AUTOMATIC_OPTIONS, PRESETS, UNKNOWN_POLICIES

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
    "as in RUN" for all other fields.
    """
    if not sections or "training" in sections:
        add_max_memory(parser)
    kinds = kinds_from_words(parser.words)
    classes, option_names = section_types(kinds), ["config", "model"]
    fields = [(section, field) for section in sections or classes for field in option_fields(classes[section])]
    if not sections:
        # With one of these options, `kinds_from_words` selects the backbone that has them; here they are only help.
        names = {*TRANSFORMER_OPTIONS} - {field.name for _, field in fields}
        fields += [("backbone", field) for field in option_fields(HuggingFaceOptions) if field.name in names]
    for section, field in fields:
        name = section if field.name == "kind" else field.name
        option_names.append(name)
        is_built_in = kinds.get(section) in (None, *OPTION_KINDS.get(section, ()))
        help_section = parser.section(section, is_rare=is_built_in and name not in COMMON_OPTIONS)
        if field.name == "kind":
            _add_kind(help_section, section, kinds)
            continue
        default = "automatic" if name in AUTOMATIC_OPTIONS.get(section, ()) else field.default
        if run_defaults is not None:
            default = run_defaults.get(name, "as in RUN")
        elif name in TRANSFORMER_OPTIONS:
            default = field.default or "none, recurrent layers"
        _add_field(help_section, field, option_types(classes[section]).get(name, str), default)
    parser.optional.set_defaults(option_names=option_names)


def kinds_from_words(words: Sequence[str]) -> dict[str, str]:
    """Return the kinds of tokenizer, backbone and head that a command line selects, or else its --config file."""
    values: dict[str, str] = {}  # option -> value
    names_by_flag = {f"--{name}": name for name in (*OPTION_KINDS, "config", *TRANSFORMER_OPTIONS)}
    for word, next_word in itertools.pairwise((*words, "")):
        flag, equals, value = word.partition("=")
        if flag in names_by_flag:
            values[names_by_flag[flag]] = value if equals else next_word
    kinds = {section: kind for section, kind in values.items() if section in OPTION_KINDS}
    with suppress(UserError, OSError):  # the config reports the errors
        kinds |= selected_kinds(options_by_section(values))
    return kinds


def _add_kind(help_section: Section, section: str, kinds: Mapping[str, str]) -> None:
    """Add the option that selects the kind of a tokenizer, backbone or head."""
    default = DEFAULT_KINDS[section]
    choices = (*OPTION_KINDS[section], *EXTENSIBLE[section].registered, kinds.get(section, default))
    placeholder = f"{{{','.join(dict.fromkeys(choices))}}}"
    help_text = f"{KIND_HELP[section]}; packages may add names (default: {default})"
    help_section.add_argument(f"--{section}", default=argparse.SUPPRESS, metavar=placeholder, help=help_text)


def _add_field(help_section: Section, field: dataclasses.Field[Any], option_type: type, default: Any) -> None:
    """Add the option of a field of the config, with `default` in its help.

    The parser does not check choices and limits, because other packages may add choices; the config checks them.
    """
    help_text = field.metadata.get("help", "").replace("%", "%%")  # argparse formats the help with %
    if default not in (None, "", ()) and not isinstance(default, bool):
        help_text += f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
    settings: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": help_text}
    if option_type is bool:
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings["metavar"] = field.metadata.get("metavar") or None
        if choices := field.metadata.get("choices"):
            settings["metavar"] = f"{{{','.join((NONE, *choices) if option_type is tuple else choices)}}}"
        settings |= {"action": "append"} if option_type is tuple else {"type": option_type}
    help_section.add_argument("--" + field.name.replace("_", "-"), **settings)


def option_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a training that a command line specifies, by name, with its --config and --model."""
    return {name: getattr(arguments, name) for name in arguments.option_names if hasattr(arguments, name)}


def prepare_training(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Set the number of threads that a training command specifies; return its config options by section."""
    specified = options_by_section(option_values(arguments))
    set_threads(Config.from_dict(specified).training.threads)
    return specified


def add_training_files(parser: Parser) -> None:
    """Add the arguments of training commands for the tables, the file of options, and the budget."""
    add_table(parser, "train")
    parser.add_argument("--dev", type=Path, help="development table (default: 5 %% of the rows are held out)")
    help_text = "TOML or JSON file of options; options on the command line take precedence"
    parser.add_argument("--config", type=Path, help=help_text)
    help_text = "minutes for each training, with reading and the work after it (default: chosen from the table)"
    parser.add_argument("--minutes", type=float, help=help_text)
    help_text = "effort to spend on each training (default: good; with --minutes: best)"
    parser.add_argument("--preset", choices=PRESETS, help=help_text)


def add_table(parser: Parser, name: str = "table") -> None:
    """Add the table of texts that a command reads."""
    parser.add_argument(name, type=Path, metavar=name.upper(), help="table of texts: CSV, TSV, JSONL or Parquet")


def add_run(parser: Parser, help_text: str = "run folder") -> None:
    """Add the run folder that a command opens."""
    parser.add_argument("run", type=Path, metavar="RUN", help=help_text)


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print rows of JSON")


def add_seed(parser: Parser | Section, purpose: str) -> None:
    """Add --seed, whose help says that it is the seed of `purpose`."""
    parser.add_argument("--seed", type=int, default=0, help=f"seed of {purpose}")


def add_unknown(parser: Parser, default: str = "group") -> None:
    """Add --unknown, the policy for rare and unseen values (`limits.UNKNOWN_POLICIES`)."""
    help_text = "for context values that are rare in training or unseen: stop with an error, or read them as rare "
    help_text += "(group) or as missing values (expected)"
    parser.add_argument("--unknown", default=default, choices=UNKNOWN_POLICIES, help=help_text)


def add_output(parser: Parser | Section, flag: str, help_text: str, *, folder: bool = False, **settings: Any) -> None:
    """Add the option of an output file, or with `folder` of an output folder.

    The parser checks that it can be written, before the command begins its work.
    """
    path_type = partial(writable_path, folder=folder)
    parser.add_argument(flag, type=path_type, help=help_text, **{"metavar": "FILE", **settings})


def writable_path(text: str, folder: bool) -> Path:
    """Return `text` as a path, or raise an error if it cannot be written; argparse calls this for output arguments."""
    from factorcell.io import files

    try:
        files.check_writable(text, folder)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def add_threads(parser: Parser | Section) -> None:
    parser.add_argument("--threads", type=int, default=0, help="number of threads; 0: one per core")


def add_max_memory(parser: Parser) -> None:
    help_text = "memory limit in GiB; commands refuse work that needs more (default: memory of the machine)"
    parser.rare.add_argument("--max-memory", type=float, metavar="GIB", help=help_text)


def add_computing(parser: Parser, unknown: str = "group") -> None:
    """Add the options of commands that compute with a model; `unknown` is the default of one of them."""
    add_unknown(parser, unknown)
    add_json(parser)
    computing = parser.section("computing")
    add_threads(computing)
    computing.add_argument("--device", default="auto", choices=DEVICES, help=DEVICE_HELP)
    computing_rare = parser.section("computing", is_rare=True)
    computing_rare.add_argument("--precision", default="auto", choices=PRECISIONS, help=PRECISION_HELP)
    add_max_memory(parser)


def add_no_ngram_mixture(section: Parser | Section) -> None:
    help_text = "use the neural model alone, even if the run has a mixture with n-gram counts"
    section.add_argument("--no-ngram-mixture", action="store_true", help=help_text)


def open_run(arguments: argparse.Namespace, folder: Path | None = None) -> "Run":
    """Open a run folder, by default that of the command, as the options of `add_computing` specify."""
    from factorcell.runs.run import Run

    mixture = not getattr(arguments, "no_ngram_mixture", False)
    return Run.open(folder or arguments.run, mixture=mixture, device=arguments.device, precision=arguments.precision)


def set_threads(count: int) -> None:
    """Set the number of threads; 0: one per core."""
    import torch

    torch.set_num_threads(count or memory.usable_cores())


def add_context(parser: Parser, repetition: str = "repeatable, or joined by ';'") -> None:
    """Add --context, which sets the value of one context column; the help explains its `repetition`."""
    help_text = f"value of a context column ({repetition}; all other columns have their expected value)"
    parser.add_argument("--context", action="append", default=[], metavar="NAME=VALUE", help=help_text)


def parse_context(run: "Run | None", texts: Sequence[str], option: str = "--context") -> dict[str, str]:
    """Return a context, column -> value, from texts as in `parse_context_values`."""
    values = parse_context_values(run, texts, option)
    for name, values_of_column in values.items():
        if len(values_of_column) > 1:
            actual = " and ".join(map(repr, values_of_column))
            raise UserError(f"{option}: expected one value of {name}, got {actual}")
    return {name: value for name, (value,) in values.items()}


def parse_context_values(run: "Run | None", texts: Sequence[str], option: str = "--context") -> dict[str, list[str]]:
    """Return the values of each column, without repetitions, from texts `NAME=VALUE` or `NAME=VALUE; NAME=VALUE`.

    NAME ends before the first equals sign, or is a column of `run`. Error messages begin with `option`.
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


def check_contexts(run: "Run", contexts: Sequence[Mapping[str, str]], unknown: str) -> None:
    """Raise a `UserError` if a context is invalid."""
    for context in contexts:
        run.read([""], [context], unknown=unknown)


def find_training_table(run: "Run", specified: Path | None, consequence: str) -> Path | None:
    """Return the specified training table, or that of a run; report the `consequence` if there is none."""
    from factorcell.runs.run import training_table

    table = specified or training_table(run)
    if table is None:
        problem = f"{run.folder} records no existing training table"
        report(Finding("no evidence", f"{consequence}: {problem}; add --train TABLE"))
    return table
