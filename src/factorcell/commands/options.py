"""Command-line options from the fields of the config, each written once in `config.py`, and those that verbs share."""

import argparse
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from factorcell import input_files, memory
from factorcell.choices import AUTOMATIC_OPTIONS, PRESETS, UNKNOWN_POLICIES
from factorcell.commands import terminal
from factorcell.commands.parser import Parser, Section
from factorcell.config import (
    DEVICES,
    EXTENSIBLE,
    MODELS,
    PRECISIONS,
    Config,
    UserError,
    read_options,
    section_types,
    selected_kinds,
)
from factorcell.extensions import NONE
from factorcell.option_fields import KIND_HELP, OPTION_KINDS

if TYPE_CHECKING:
    from factorcell.data.schema import ContextSchema
    from factorcell.training.plan import Budget

Model = TypeVar("Model")


def add_config_options(parser: Parser, *sections: str, otherwise: Mapping[str, Any] | None = None) -> None:
    """Add an option for every field of the sections, or of all; one that is not given leaves no trace.

    What holds then follows from the table or is the field's default; where a run says it, only what is `otherwise`.
    """
    if not sections or "training" in sections:
        add_max_memory(parser)
    for section, field in config_fields(parser.kinds):
        if not sections or section in sections:
            default = "by the table" if field.name in AUTOMATIC_OPTIONS.get(section, ()) else field.default
            if otherwise is not None:
                default = otherwise.get(field.name, "as in RUN")
            group = parser.rare if field.metadata.get("rare") else parser.section(section)
            if field.name == "kind":
                _add_kind(group, section, parser.kinds)
            else:
                _add_field(group, field, default)


def config_fields(kinds: Mapping[str, str]) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield the fields of a config with these kinds of tokenizer, backbone and head, each after its section."""
    for section, made in section_types(kinds).items():
        for field in dataclasses.fields(made):
            yield section, field


def kinds_from_words(words: Sequence[str]) -> dict[str, str]:
    """Return the kinds of tokenizer, backbone and head that the words of a command name, or else its --config file."""
    named: dict[str, str] = {}
    options = {f"--{name}": name for name in (*OPTION_KINDS, "config")}
    for word, after in itertools.pairwise((*words, "")):
        flag, equals, value = word.partition("=")
        if flag in options:
            named[options[flag]] = value if equals else after
    path, kinds = named.pop("config", ""), dict[str, str]()
    with suppress(UserError, OSError):  # of a file that is not valid, which is reported when it is read
        sections = input_files.read_options_file(Path(path)) if path else {}
        kinds = selected_kinds(sections)
    return kinds | named


def _add_kind(group: Section, section: str, kinds: Mapping[str, str]) -> None:
    """Add the option that chooses the kind of a tokenizer, backbone or head."""
    default = next(iter(OPTION_KINDS[section]))
    names = ",".join(
        dict.fromkeys((*OPTION_KINDS[section], *EXTENSIBLE[section].registered, kinds.get(section, default)))
    )
    text = f"{KIND_HELP[section]}; packages may add names (default: {default})"
    group.add_argument(f"--{section}", default=argparse.SUPPRESS, metavar=f"{{{names}}}", help=text)


def _add_field(group: Section, field: dataclasses.Field[Any], default: Any) -> None:
    """Add the option of a field; the config checks its choices and its limits, which packages may extend."""
    text, is_list = field.metadata.get("help", "").replace("%", "%%"), isinstance(field.default, tuple)
    if default not in (None, "", ()) and not isinstance(default, bool):
        text += f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
    how: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text}
    if field.type in (bool, bool | None):
        how["action"] = argparse.BooleanOptionalAction
    elif choices := field.metadata.get("choices"):
        how["metavar"] = f"{{{','.join((NONE, *choices) if is_list else choices)}}}"
    else:
        how |= {"type": type(field.default), "metavar": field.metadata.get("metavar") or None}
    if is_list:
        how |= {"action": "append", "type": str}
    group.add_argument("--" + field.name.replace("_", "-"), **how)


def specified_options(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What a command says of a config, by section: its file, then its named model, then its own options."""
    found = read_options(given.config) if getattr(given, "config", None) else {}
    chosen = {section: getattr(given, section) for section in OPTION_KINDS if hasattr(given, section)}
    own: dict[str, dict[str, Any]] = {section: {} for section in section_types()}
    for section, kind in chosen.items():
        if kind != found.get(section, {}).get("kind"):
            found.pop(section, None)  # options of another kind
        own[section]["kind"] = kind
    kinds = selected_kinds(found) | chosen
    if getattr(given, "model", None):
        own["model"] = dict(zip(("adapt", "output_bias"), MODELS[given.model], strict=True))
    for section, field in config_fields(kinds):
        if field.name != "kind" and hasattr(given, field.name):
            value = getattr(given, field.name)
            if isinstance(value, list):  # of choices, `none` stands for an empty list
                value = tuple(name for name in value if name != NONE or not field.metadata["choices"])
            own[section][field.name] = value
    return {section: {**found.get(section, {}), **values} for section, values in own.items()}


def training_request(given: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], "Budget"]:
    """What a command says of a training, and what it may take; its threads are set."""
    from factorcell.training.plan import Budget

    found = specified_options(given)
    set_threads(Config.from_dict(found).training.threads)
    return found, Budget(given.minutes, given.preset)


def add_training_files(verb: Parser) -> None:
    """Add the tables and the recipe of a training."""
    add_table(verb, "train")
    verb.add_argument("--dev", type=Path, help="development table (default: 5 %% of the rows are held out)")
    verb.add_argument("--config", type=Path, help="TOML or JSON file of options; those given here win")
    verb.add_argument("--minutes", type=float, help="end each training in time (default: what the table deserves)")
    text = "how much work the table is worth (default: good; with --minutes best)"
    verb.add_argument("--preset", choices=PRESETS, help=text)


def add_table(verb: Parser, name: str = "table") -> None:
    """Add the table of texts that a verb reads."""
    verb.add_argument(name, type=Path, metavar=name.upper(), help="table of texts: CSV, TSV, JSONL or Parquet")


def add_run(verb: Parser, text: str = "run folder") -> None:
    """Add the run folder that a verb opens."""
    verb.add_argument("run", type=Path, metavar="RUN", help=text)


def add_json(verb: Parser) -> None:
    """Add the option for rows of JSON."""
    verb.add_argument("--json", action="store_true", help="print rows of JSON")


def add_seed(verb: Parser | Section, of: str) -> None:
    """Add the seed of what is drawn."""
    verb.add_argument("--seed", type=int, default=0, help=f"seed of {of}")


def add_unknown(verb: Parser, default: str = "error") -> None:
    """Add what to do with a context value that was never seen."""
    text = "a value never seen: an error, a rare value, or a missing one"
    verb.add_argument("--unknown", default=default, choices=UNKNOWN_POLICIES, help=text)


def add_output(verb: Parser | Section, flag: str, text: str, *, folder: bool = False, **how: Any) -> None:
    """Add a file (or `folder`) that a verb writes its results to, which is tried before the work begins."""
    verb.add_argument(flag, type=partial(writable_path, folder=folder), help=text, **{"metavar": "FILE", **how})


def writable_path(text: str, folder: bool) -> Path:
    """The path `text`, if it can be written."""
    from factorcell import files

    try:
        files.check_writable(text, folder)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def add_threads(group: Parser | Section) -> None:
    """Add how many threads compute."""
    group.add_argument("--threads", type=int, default=0, help="threads; 0: all cores")


def add_max_memory(verb: Parser) -> None:
    """Add how much memory there is."""
    text = "GiB that may be used: what would take more is refused before it begins (default: what the machine has)"
    verb.rare.add_argument("--max-memory", type=float, metavar="GIB", help=text)


def add_computing(verb: Parser, precision: str = "auto", unseen: str = "error") -> None:
    """Add how texts are scored, by default with numbers of a `precision`, and what is shown of it.

    What prints texts, words or lists is "float32": of the faster numbers a busy machine may find others the next time,
    and then other texts are drawn.
    """
    add_unknown(verb, unseen)
    add_json(verb)
    group = verb.section("computing")
    add_threads(group)
    group.add_argument(
        "--device", default="auto", choices=DEVICES, help="where to compute; auto: a GPU if there is one"
    )
    text = "numbers in matrix products; auto: the faster ones"
    group.add_argument("--precision", default=precision, choices=PRECISIONS, help=text)
    add_max_memory(verb)


def open_on_device(open_model: Callable[..., Model], folder: Path, given: argparse.Namespace) -> Model:
    """The model in a folder, as `computing` has it; what is to be said of the numbers it computes with is kept.

    Other models of the same command compute with the same ones: differences of models are not to be those of numbers.
    """
    from factorcell.model import precision

    model = open_model(folder, device=given.device, precision=given.precision)
    given.precision = getattr(model, "precision", given.precision)
    if given.precision != precision.FLOAT32:
        given.computed = getattr(given, "computed", None) or precision.describe_speedup(
            getattr(model, "bfloat16_speedup", 1.0)
        )
    return model


def set_threads(count: int) -> None:
    """Set the number of threads; 0: one per core."""
    import torch

    torch.set_num_threads(count or memory.usable_cores())


def set_max_memory(given: float | None) -> None:
    """Limit the memory of this process, and of those that it starts, in GiB; None: no limit but the machine's."""
    if given is not None:
        os.environ[memory.LIMIT_VARIABLE] = str(given)


def add_context(verb: Parser) -> None:
    """Add the context of texts, a column at a time."""
    text = "the value of a context column (repeatable; one that is not given is expected)"
    verb.add_argument("--context", action="append", default=[], metavar="NAME=VALUE", help=text)


def parse_context(given: Sequence[str], option: str = "--context") -> dict[str, str]:
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


def notify_rare_values(schema: "ContextSchema", *contexts: Mapping[str, str]) -> None:
    """Say which values that somebody gave are read as rare ones, which a model takes for one and the same."""
    from factorcell.data.schema import may_contain

    for variable in schema.categories:
        given = dict.fromkeys(
            context[variable.source_column] for context in contexts if variable.source_column in context
        )
        for name in given:
            if name not in variable.values and may_contain(bytes.fromhex(variable.rare_filter), name):
                few = f"training had fewer than {variable.min_count} texts of it"
                terminal.notify(
                    f"{variable.source_column} {name!r} is read as a rare value, like all others of them: {few}"
                )
