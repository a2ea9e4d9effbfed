"""Hyperparameter search with Optuna: trials that train with sampled options, in a study that can be resumed.

The folder of a search has a run folder per trial, the best options, and the study unless it is in PostgreSQL.
"""

import logging
import math
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from factorcell.config import Config, HuggingFaceOptions, option_sections, option_types, section_types, selected_kinds
from factorcell.data.tables.tables import table_name
from factorcell.errors import UserError, check_choice
from factorcell.io import files
from factorcell.io.findings import LOG
from factorcell.io.torchrun import ProcessEndedError
from factorcell.options import limits
from factorcell.training.fit import read_corpora, train_run
from factorcell.training.rules import Budget, SpecifiedOptions, add_options
from factorcell.training.studies import import_optuna, open_study

if TYPE_CHECKING:
    import optuna

CONFIG = "config"  # attribute of a trial: all options of its run
Values = Sequence[Any] | Mapping[str, Any]  # choices, or a range with the keys `low`, `high` and optionally `log`
Space = Mapping[str, Values]  # by the name of an option

# The ranges of sizes, rank and recurrent dropout span the values that the TACL paper selected (table 2).
SIZES_AND_DROPOUT: Space = {
    "embedding_size": {"low": 35, "high": 200, "log": True},
    "hidden_size": {"low": 110, "high": 250, "log": True},
    "layer_norm": [False, True],
    "dropout_recurrent": {"low": 0.0, "high": 0.5},
    "dropout_input": {"low": 0.0, "high": 0.4},
    "dropout_output": {"low": 0.0, "high": 0.5},
}
DEFAULT_SPACE: Space = {
    "context_size": {"low": 2, "high": 30, "log": True},
    "rank": {"low": 2, "high": 20},
    "dropout_context": {"low": 0.0, "high": 0.3},
    "batch_tokens": {"low": 500, "high": 4000, "log": True},
    "learning_rate": {"low": 5e-4, "high": 1e-2, "log": True},
    "token_rate": {"low": 1.0, "high": 4.0},
    "weight_decay": {"low": 0.0, "high": 0.03},
}
ADAPTER_RATES = {"low": 1e-4, "high": 5e-3, "log": True}  # learning rates of the adapters of a frozen base
BASE_RATES = {"low": 1e-5, "high": 5e-4, "log": True}  # learning rates of a pretrained base


def default_space(config: Config) -> dict[str, Values]:
    """Return the default ranges of the options that a model with this config has."""
    if not isinstance(config.backbone, HuggingFaceOptions):
        sections = config.to_dict()
        options = {**sections["model"], **sections["backbone"]}
        return {name: values for name, values in SIZES_AND_DROPOUT.items() if name in options} | dict(DEFAULT_SPACE)
    if not config.backbone.is_pretrained:
        return dict(DEFAULT_SPACE)
    return {**DEFAULT_SPACE, "learning_rate": BASE_RATES if config.backbone.train_base else ADAPTER_RATES}


def tune(
    source: Any,
    dev: Any,
    config: Config | SpecifiedOptions,
    folder: str | Path,
    *,
    trials: int = 50,
    space: Space | None = None,
    storage: str | None = None,
    **budget: Unpack[Budget],
) -> list[files.Row]:
    """Train runs with sampled options until the study has `trials` of them; continue an existing study.

    The sampler is Optuna's TPE (tree-structured Parzen estimator), which minimizes the development perplexity.

    Args:
        source: The training table.
        dev: The development table; if None, 5 % of the training rows are held out.
        config: The options that all trials share: a `Config`, or a mapping of some options by section.
        folder: The folder for the run folders.
        trials: The number of trials in the whole study.
        space: The options to sample, each with a list of choices or a range; by default `default_space`.
        storage: The URL of a PostgreSQL database, in which processes share the study with the name of `folder`; by
            default the study is in `folder`.
        **budget: The `minutes` or the `preset` of each trial, as in `fit`.

    Returns:
        A row per trial, the best first: its folder, its perplexity, its sampled options, and a possible error.

    Raises:
        UserError: If Optuna is not installed, an input is not valid, or the study has other tables or options.
    """
    [trials] = limits.check(trials=trials)
    optuna = import_optuna()
    folder, options = Path(folder), config.to_dict() if isinstance(config, Config) else config
    defaults = Config.from_dict(options)
    space = default_space(defaults) if space is None else space
    distributions = {name: _distribution(name, values, options) for name, values in space.items()}
    read_corpora(source, dev, defaults)  # raises the errors of the tables before the first trial
    description: files.Row = {"source": table_name(source), "dev": None if dev is None else table_name(dev)}
    for section, values in options.items():
        description |= {f"{section}.{name}": value for name, value in values.items()}
    description |= {f"range of {name}": values for name, values in space.items()}
    description |= {name: budget.get(name) for name in ("minutes", "preset")}
    if dev is None and "seed" in space:
        raise UserError("search space: seed: expected a development table, because the seed selects held-out texts")
    with open_study(folder, storage) as study:
        study.check_description(description)
        while (trial := study.next_trial(trials, distributions, defaults.training.seed)) is not None:
            LOG.addFilter(_is_warning)  # each trial would log the same facts about the table
            try:
                trial_options = _with_sampled(options, trial.params)
                run = train_run(source, dev, trial_options, folder / _trial_name(trial), resume=True, **budget)
                if (perplexity := (run.best_evaluation() or {}).get("perplexity")) is None:
                    raise UserError("the development perplexity is not finite")
            except ProcessEndedError:
                raise  # the same command resumes the trial
            except UserError as error:
                trial.set_user_attr("error", str(error))
                study.optuna.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            else:
                trial.set_user_attr(CONFIG, run.config.to_dict())
                study.optuna.tell(trial, perplexity, skip_if_finished=True)
            finally:
                LOG.removeFilter(_is_warning)
            with study.locked():
                rows = _write_results(study.optuna, folder)
            row = next(row for row in rows if row["trial"] == _trial_name(trial))
            LOG.info("%s: %s", row["trial"], row.get("error") or f"perplexity {row['perplexity']:.2f}")
        return trial_rows(study.optuna)


def _write_results(study: "optuna.Study", folder: Path) -> list[files.Row]:
    """Write the rows of all trials and the best options; return the rows."""
    rows = trial_rows(study)
    files.write_rows(folder / "trials.jsonl", rows)
    if rows[0]["perplexity"] is not None:
        files.write(folder / "best.toml", Config.from_dict(study.best_trial.user_attrs[CONFIG]).to_toml())
    return rows


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def _trial_name(trial: "optuna.Trial | optuna.trial.FrozenTrial") -> str:
    return f"trial-{trial.number:04}"


def _distribution(name: str, values: Values, options: SpecifiedOptions) -> Any:
    """Return Optuna's distribution of an option; raise a `UserError` if its values are not valid."""
    distributions = import_optuna().distributions
    sections = option_sections(selected_kinds(options))
    if sections[check_choice("option", name, sections)] in ("data", "tokenizer") and name != "min_context_count":
        raise UserError(f"search space: {name}: perplexities with different values of this option are not comparable")
    is_list = isinstance(values, list | tuple) and len(values) > 0
    is_range = isinstance(values, Mapping) and {"low", "high"} <= {*values} <= {"low", "high", "log"}
    if not (is_list or is_range):
        expected = "expected a list of choices or a range, {low = ..., high = ...}"
        raise UserError(f"search space: {name}: {expected}, got {reprlib.repr(values)}")
    ends = [values["low"], values["high"]] if isinstance(values, Mapping) else list(values)
    try:
        for value in ends:
            Config.from_dict(_with_sampled(options, {name: value}))
        if not isinstance(values, Mapping):
            return distributions.CategoricalDistribution(ends)
        is_whole = _option_types(options)[name] is int
        distribution = distributions.IntDistribution if is_whole else distributions.FloatDistribution
        return distribution(*ends, log=values.get("log", False))
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"search space: {name}: {error}") from None


def _with_sampled(options: SpecifiedOptions, params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options with sampled ones; a sampled list, as of `adapt`, is a text with "+" between its items."""
    types = _option_types(options)
    lists = {
        name: [item for item in value.split("+") if item]
        for name, value in params.items()
        if types[name] is tuple and isinstance(value, str)
    }
    return add_options(options, {**params, **lists})


def _option_types(options: SpecifiedOptions) -> dict[str, Any]:
    sections = section_types(selected_kinds(options)).values()
    return {name: option_type for section in sections for name, option_type in option_types(section).items()}


def trial_rows(study: "optuna.Study") -> list[files.Row]:
    """Return a row per trial, those with the lowest perplexity first and those without one last."""
    rows = [
        {
            "trial": _trial_name(trial),
            "state": trial.state.name.lower(),
            "perplexity": trial.values[0] if trial.values else None,
            **trial.params,
            **{name: value for name, value in trial.user_attrs.items() if name != CONFIG},
        }
        for trial in study.get_trials(deepcopy=False)
    ]
    return sorted(rows, key=lambda row: math.inf if row["perplexity"] is None else row["perplexity"])
