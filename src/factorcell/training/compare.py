"""The papers' models side by side, trained on the same texts with the same options."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorcell import files
from factorcell.config import PAPER_MODELS, Config, UserError
from factorcell.data.tables import name_of
from factorcell.evaluation import perplexity
from factorcell.evaluation.results import note, told_apart
from factorcell.model.run import ADVICE, BEGINNING, Run
from factorcell.training.fit import Say, fit, read, tell
from factorcell.training.plan import Asked, Budget, Plan, plan, resumed, said_config

Row = dict[str, Any]
SCORES = ("accuracy", "macro_f1", "auc")


def compare(
    source: Any,
    dev: Any,
    test: Any,
    config: Asked,
    folder: str | Path,
    *,
    budget: Budget | None = None,
    models: Sequence[str] = PAPER_MODELS,
    target: str | None = None,
    resume: bool = False,
    say: Say | None = None,
) -> list[Row]:
    """Train the papers' models with the same options on the same texts; one row of results per model.

    What `config` leaves open follows from the table and the `budget`, which each model has, as `fit` has it.
    `target` names the context column to classify. Results are of `test`, else of `dev`. Finished models are not
    trained again with `resume`.
    """
    folder = Path(folder)
    if test is None and dev is None:
        raise UserError("compare needs a development or a test table to report on (--dev, --test)")
    if not resume and not files.is_new(folder, BEGINNING):
        raise UserError(f"{folder}: exists already; {ADVICE}")
    made = common_plan(source, dev, config, folder, budget, models=models, say=say)
    rows = []
    table = dev if test is None else test
    for model in models:
        path = folder / model
        tell(say, f"{model} -> {path}")
        chosen = made.of(model)
        kept = files.read_rows(path / "results.jsonl") if resume else []
        done = [row for row in kept if row["kind"] == "compare" and row["table"] == name_of(table)]
        if not done:
            done = [_judged(fit(source, dev, chosen, path, resume=resume, say=say), table, target)]
        rows.append(done[-1])
    return rows


def common_plan(
    source: Any,
    dev: Any,
    asked: Asked,
    folder: Path,
    budget: Budget | None,
    *,
    models: Sequence[str],
    say: Say | None,
) -> Plan:
    """The options of all `models` in `folder`: those of the ones that were begun, else of a plan."""
    if begun := [folder / model for model in models if (folder / model / "config.json").exists()]:
        return resumed(asked, Config.load(begun[0] / "config.json"))
    corpus, held = read(source, dev, said_config(asked), progress=say is not None)
    made = plan(asked, corpus, held, budget, models=models)
    for line in made.lines():
        tell(say, line)
    return made


def _judged(run: Run, table: Any, target: str | None) -> Row:
    """The results of one model of a comparison, noted in its folder."""
    corpus = run.prepare(table, unknown="group")
    row: Row = {"model": run.folder.name, **perplexity.evaluate(run, corpus)}
    row["parameters"] = run.model.parameter_count()
    row["minutes"] = run.minutes()
    if target and run.model.adapted:
        row |= {key: value for key, value in told_apart(run, table, target).items() if key in SCORES}
    note(run, {"kind": "compare", "table": name_of(table), **row})
    return row
