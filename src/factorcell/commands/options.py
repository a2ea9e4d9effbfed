"""Command-line options from the fields of the config, each written once in `config.py`, and those that verbs share."""

import argparse
import dataclasses
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from factorcell import cores, memory
from factorcell.choices import CHOSEN, PRESETS, UNKNOWN_POLICIES
from factorcell.commands import terminal
from factorcell.commands.parser import Parser
from factorcell.config import DEVICES, EXTENSIBLE, MODELS, PRECISIONS, Config, UserError, said_in
from factorcell.data.schema import holds
from factorcell.extensions import NONE

if TYPE_CHECKING:
    from factorcell.data.schema import ContextSchema
    from factorcell.training.plan import Budget

Model = TypeVar("Model")


def add(parser: Parser, *sections: str, otherwise: Mapping[str, Any] | None = None) -> None:
    """Add an option for every field of the sections, or of all; one that is not given leaves no trace.

    What holds then follows from the table or is the field's default; where a run says it, only what is `otherwise`.
    """
    if not sections or "training" in sections:
        max_memory_of(parser)
    for section in dataclasses.fields(Config):
        if section.name in (sections or (section.name,)):
            kind: Any = section.type
            hints = typing.get_type_hints(kind)
            for field in dataclasses.fields(kind):
                group = parser.rare if field.metadata["rare"] else parser.section(section.name)
                default = "by the table" if field.name in CHOSEN.get(section.name, ()) else field.default
                if otherwise is not None:
                    default = otherwise.get(field.name, "as in RUN")
                _add_field(group, field, hints[field.name], default)


def _add_field(group: Any, field: dataclasses.Field[Any], hint: Any, default: Any) -> None:
    flag, text = "--" + field.name.replace("_", "-"), field.metadata["help"].replace("%", "%%")
    choices, metavar = field.metadata["choices"] or None, field.metadata["metavar"] or None
    if default not in (None, "", ()) and not isinstance(default, bool):
        text += f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
    common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text}
    if typing.get_origin(hint) is types.UnionType:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if hint is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    elif typing.get_origin(hint) is tuple:
        names = f"{{none,{','.join(choices)}}}" if choices else metavar
        group.add_argument(flag, action="append", metavar=names, **common)
    elif field.name in EXTENSIBLE:  # the config knows which there are
        group.add_argument(flag, type=hint, metavar=f"{{{','.join(choices or ())}}}", **common)
    else:
        group.add_argument(flag, type=hint, choices=choices, metavar=metavar, **common)


def said(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What a command says of a training, by section: its file, then its named model, then its own options."""
    found = said_in(given.config) if getattr(given, "config", None) else {}
    return {section: {**found.get(section, {}), **own} for section, own in _own(given).items()}


def asked(given: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], "Budget"]:
    """What a command says of a training, and what it may take; its threads are set."""
    from factorcell.training.plan import Budget

    found = said(given)
    threads(Config.from_dict(found).training.threads)
    return found, Budget(given.minutes, given.preset)


def config(given: argparse.Namespace) -> Config:
    """The config of a command that chooses nothing: what it says, and for the rest the defaults."""
    base = Config.load(given.config) if getattr(given, "config", None) else Config()
    sections = _own(given)
    return Config(**{name: dataclasses.replace(getattr(base, name), **own) for name, own in sections.items()})


def _own(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The options that the command line gives, by section."""
    own = {
        section.name: {
            field.name: _value(field, getattr(given, field.name))
            for field in dataclasses.fields(section.type)  # type: ignore[arg-type]
            if hasattr(given, field.name)
        }
        for section in dataclasses.fields(Config)
    }
    if getattr(given, "model", None):
        adapt, output_bias = MODELS[given.model]
        own["model"] = {"adapt": adapt, "output_bias": output_bias, **own["model"]}
    if "unit" in own["data"] and "lowercase" not in own["data"]:
        own["data"]["lowercase"] = None  # follows the unit
    return own


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
    """A list without `none`, which stands for an empty one."""
    if not isinstance(value, list):
        return value
    chosen = bool(field.metadata["choices"])
    return tuple(name for name in value if not (chosen and name == NONE))


def training_files(verb: Parser) -> None:
    """Add what a training reads."""
    table(verb, "train")
    verb.add_argument("--dev", type=Path, help="development table (default: 5 %% of the rows are held out)")
    verb.add_argument("--config", type=Path, help="TOML or JSON file of options; those given here win")
    verb.add_argument("--minutes", type=float, help="end each training in time (default: what the table deserves)")
    text = "how much work the table is worth (default: good; with --minutes best)"
    verb.add_argument("--preset", choices=PRESETS, help=text)


def table(verb: Parser, name: str = "table") -> None:
    """Add the table of texts that a verb reads."""
    verb.add_argument(name, type=Path, metavar=name.upper(), help="table of texts: CSV, TSV, JSONL or Parquet")


def run(verb: Parser, text: str = "run folder") -> None:
    """Add the run that a verb asks."""
    verb.add_argument("run", type=Path, metavar="RUN", help=text)


def json(verb: Parser) -> None:
    """Add that results are rows."""
    verb.add_argument("--json", action="store_true", help="print rows of JSON")


def seed(verb: Any, of: str) -> None:
    """Add the seed of what is drawn."""
    verb.add_argument("--seed", type=int, default=0, help=f"seed of {of}")


def unknown(verb: Parser) -> None:
    """Add what to do with a context value that was never seen."""
    text = "a value never seen: an error, a rare value, or a missing one"
    verb.add_argument("--unknown", default="error", choices=UNKNOWN_POLICIES, help=text)


def written(verb: Parser, flag: str, text: str, *, folder: bool = False, **how: Any) -> None:
    """Add a file (or `folder`) that a verb writes its results to; `try_written` tries it before the verb begins."""
    action = verb.add_argument(flag, type=Path, help=text, **how)
    name = "folders" if folder else "files"
    verb.set_defaults(**{name: (*(verb.get_default(name) or ()), action.dest)})


def try_written(given: argparse.Namespace) -> None:
    """`UserError` unless all that a command is to write can be written: the results of long work are not to be lost."""
    from factorcell import files

    for names, check in (("files", files.try_path), ("folders", files.try_folder)):
        for name in getattr(given, names, ()):
            if (path := getattr(given, name)) is not None:
                check(path)


def threads_of(group: Any) -> None:
    """Add how many threads compute."""
    group.add_argument("--threads", type=int, default=0, help="threads; 0: all cores")


def max_memory_of(verb: Parser) -> None:
    """Add how much memory there is."""
    text = "GiB that may be used: what would take more is refused before it begins (default: what the machine has)"
    verb.rare.add_argument("--max-memory", type=float, metavar="GIB", help=text)


def computing(verb: Parser, precision: str = "auto") -> None:
    """Add how texts are scored, by default with numbers of a `precision`, and what is shown of it.

    What prints texts, words or lists is "float32": of the faster numbers a busy machine may find others the next time,
    and then other texts are drawn.
    """
    unknown(verb)
    json(verb)
    group = verb.section("computing")
    threads_of(group)
    group.add_argument(
        "--device", default="auto", choices=DEVICES, help="where to compute; auto: a GPU if there is one"
    )
    text = "numbers in matrix products; auto: the faster ones"
    group.add_argument("--precision", default=precision, choices=PRECISIONS, help=text)
    max_memory_of(verb)


def opened(open_model: Callable[..., Model], folder: Path, given: argparse.Namespace) -> Model:
    """The model in a folder, as `computing` has it; what is to be said of the numbers it computes with is kept.

    Other models of the same command compute with the same ones: differences of models are not to be those of numbers.
    """
    from factorcell.model import precision

    model = open_model(folder, device=given.device, precision=given.precision)
    given.precision = getattr(model, "precision", given.precision)
    if given.precision != precision.SINGLE:
        given.computed = getattr(given, "computed", None) or precision.told(getattr(model, "gain", 1.0))
    return model


def threads(count: int) -> None:
    """Compute with so many threads; 0: with this process's share of the cores."""
    import torch

    torch.set_num_threads(count or cores.share())


def max_memory(given: float | None) -> None:
    """Let this process, and those that it starts, use so many GiB; None: as many as there are."""
    if given is not None:
        os.environ[memory.VARIABLE] = str(given)


def add_context(verb: Parser) -> None:
    """Add the context of texts, a column at a time."""
    text = "the value of a context column (repeatable; one that is not given is expected)"
    verb.add_argument("--context", action="append", default=[], metavar="NAME=VALUE", help=text)


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


def tell_rare(schema: "ContextSchema", *contexts: Mapping[str, str]) -> None:
    """Say which values that somebody gave are read as rare ones, which a model takes for one and the same."""
    for variable in schema.categories:
        given = dict.fromkeys(context[variable.source] for context in contexts if variable.source in context)
        for name in given:
            if name not in variable.values and holds(bytes.fromhex(variable.grouped), name):
                few = f"training had fewer than {variable.least} texts of it"
                terminal.say(f"{variable.source} {name!r} is read as a rare value, like all others of them: {few}")
