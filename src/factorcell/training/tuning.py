"""Hyperparameter search with Optuna: trials that train with sampled options, in a study that can be resumed.

The folder of a search has a run folder per trial, the journal of the study and its best options.
"""

import json
import logging
import math
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from factorcell.config import Config, HuggingFaceOptions, option_sections, option_types, section_types, selected_kinds
from factorcell.data.tables.tables import table_name
from factorcell.errors import UserError, check_choice
from factorcell.io import files, input_files, lock
from factorcell.io.extras import import_extra
from factorcell.io.findings import LOG
from factorcell.options import limits
from factorcell.training.fit import check_equal_options, read_corpora, train_run
from factorcell.training.rules import Budget, SpecifiedOptions, add_options

if TYPE_CHECKING:
    import optuna

STUDY, JOURNAL = "factorcell", "study.journal"
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
    **budget: Unpack[Budget],
) -> list[files.Row]:
    """Train runs with sampled options until the study in `folder` has `trials` of them; continue an existing study.

    The sampler is Optuna's TPE (tree-structured Parzen estimator), which minimizes the development perplexity.

    Args:
        source: The training table.
        dev: The development table; if None, 5 % of the training rows are held out.
        config: The options that all trials share: a `Config`, or a mapping of some options by section.
        folder: The folder of the study.
        trials: The number of trials in the whole study.
        space: The options to sample, each with a list of choices or a range; by default `default_space`.
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
    with lock.training_lock(folder):
        study = _open_study(folder, description)
        while (trial := _next_trial(study, trials, distributions, defaults.training.seed)) is not None:
            LOG.addFilter(_is_warning)  # each trial would log the same facts about the table
            try:
                trial_options = _with_sampled(options, trial.params)
                run = train_run(source, dev, trial_options, folder / _trial_name(trial), resume=True, **budget)
            except UserError as error:
                trial.set_user_attr("error", str(error))
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, (run.best_evaluation() or {})["perplexity"])
            finally:
                LOG.removeFilter(_is_warning)
            rows = trial_rows(study)
            row = next(row for row in rows if row["trial"] == _trial_name(trial))
            LOG.info("%s: %s", row["trial"], row.get("error") or f"perplexity {row['perplexity']:.2f}")
            files.write_rows(folder / "trials.jsonl", rows)
            if rows[0]["perplexity"] is not None:
                best = Config.of(config=folder / rows[0]["trial"] / "config.json")
                files.write(folder / "best.toml", best.to_toml())
        return trial_rows(study)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def _trial_name(trial: "optuna.Trial | optuna.trial.FrozenTrial") -> str:
    return f"trial-{trial.number:04}"


def import_optuna() -> Any:
    """Return the module `optuna`; raise a `UserError` if it is not installed."""
    optuna = import_extra("optuna", "a search for options", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


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


def _open_study(folder: Path, description: files.Row) -> "optuna.Study":
    """Open or create the study in a folder; raise a `UserError` if an existing study has another description."""
    optuna, path = import_optuna(), folder / JOURNAL
    if path.exists():
        input_files.check(path)
    try:
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
        study = optuna.create_study(storage=storage, study_name=STUDY, load_if_exists=True)
    except (OSError, ValueError) as error:
        reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{path}: the study cannot be opened ({reason})") from None
    description = json.loads(json.dumps(description))  # with lists instead of tuples, as in the journal
    check_equal_options(folder, study.user_attrs.get("description", description), description)
    study.set_user_attr("description", description)
    return study  # type: ignore[no-any-return]


def _next_trial(study: "optuna.Study", trials: int, distributions: dict[str, Any], seed: int) -> "optuna.Trial | None":
    """Return a trial that was interrupted, or else a new one; None if the study has all trials."""
    optuna, existing = import_optuna(), study.get_trials(deepcopy=False)
    for trial in existing:
        if trial.state == optuna.trial.TrialState.RUNNING:
            # `Trial` expects an id, which equals the number because the journal has only one study.
            return optuna.Trial(study, trial.number)  # type: ignore[no-any-return]
    if len(existing) >= trials:
        return None
    # A sampler per trial, so that a resumed search draws the same options as one that was not stopped.
    study.sampler = optuna.samplers.TPESampler(seed=(seed * 1_000_003 + len(existing)) % (1 << 32))
    return study.ask(distributions)


def trial_rows(study: "optuna.Study") -> list[files.Row]:
    """Return a row per trial, those with the lowest perplexity first and those without one last."""
    rows = [
        {
            "trial": _trial_name(trial),
            "state": trial.state.name.lower(),
            "perplexity": trial.values[0] if trial.values else None,
            **trial.params,
            **trial.user_attrs,
        }
        for trial in study.get_trials(deepcopy=False)
    ]
    return sorted(rows, key=lambda row: math.inf if row["perplexity"] is None else row["perplexity"])
