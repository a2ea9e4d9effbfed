"""Does the text that a model writes fit its context (thesis 2018, chapter 6)?

Every model writes texts for each value of a column; a judge that has learned from real texts says which value each was
written for. How often it is right is the model's context-specificity. It is compared with the perplexity of the same
model, and with its accuracy as a classifier of real texts by Bayes' rule.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from factorcell import files, limits
from factorcell.config import UserError
from factorcell.data.columns import must_have
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.bayes_rule import judged_texts
from factorcell.evaluation.cautions import cautions
from factorcell.evaluation.classification import classify
from factorcell.evaluation.comparison import Candidate, compared
from factorcell.evaluation.judge import Judge
from factorcell.evaluation.text_figures import Figures
from factorcell.generation.generate import DEFAULT, GenerationOptions, every, generate, origin, resumed
from factorcell.model.adapters import ranked
from factorcell.model.run import Run
from factorcell.progress import progress_bar

Row = dict[str, Any]


@dataclass(frozen=True)
class Design:
    """The contexts to write in: `number` for each value of a target; each draws values of the columns `draw`.

    Other columns have the values of `context`.
    """

    number: int = 200
    context: Mapping[str, str] = field(default_factory=dict)
    draw: Sequence[str] = ()

    def __post_init__(self) -> None:
        limits.check(number=self.number)

    def contexts(self, run: Run, target: str, seed: int) -> list[dict[str, str]]:
        """Those of `run`, value after value of `target`, its draws by the `seed`."""
        limits.check(seed=seed)
        choices = {name: every(run.schema, name) for name in self.draw}
        if target in self.draw:
            raise UserError(f"{target} is the target: each of its values is written for, none is drawn")
        for name in {target, *self.draw} & set(self.context):
            raise UserError(f"--context gives {name} a value, which is to have several")
        wanted: list[dict[str, str]] = []
        for value in every(run.schema, target):
            for _ in range(self.number):
                random = np.random.default_rng([seed, len(wanted)])
                drawn = {name: str(random.choice(names)) for name, names in choices.items()}
                wanted.append({**self.context, target: value, **drawn})
        return wanted


def write(
    run: Run, wanted: Sequence[Mapping[str, str]], options: GenerationOptions, file: Path, *, progress: bool = False
) -> list[Row]:
    """A text for each context `wanted`, kept in `file` as they are done; what is there already is not written again."""
    done = resumed(file, origin(run, options), wanted, 1) if file.exists() else 0
    rows = generate(run, wanted, options=options, unknown="group", first=done)
    with progress_bar(
        total=len(wanted), initial=done, desc=f"{run.folder.name} writes", unit="texts", show=progress
    ) as bar:
        for row in rows:
            files.append_row(file, row)
            bar.update()
    return files.read_rows(file)


def measure(run: Run, judge: Judge, texts: Sequence[Row], held: Any) -> tuple[Row, Figures]:
    """All figures of one model, of its `texts` and of the real texts of the table `held`; and what every text adds."""
    target = judge.target
    judged, fits = judge.judge_each([{"text": row["text"], target: row["context"][target]} for row in texts])
    corpus = run.prepare(held, unknown="group")
    nats = run.nats(corpus)
    each = text_figures.of_nats(nats, corpus)
    wanted = hashlib.sha256(json.dumps([target, *(row["context"] for row in texts)]).encode()).hexdigest()
    each["specificity"] = text_figures.of_right(wanted, fits, np.ones_like(fits))
    accuracy = None
    if run.model.adapted:
        found = classify(run, held, target, unknown="group")
        accuracy, each["accuracy"] = found.metrics()["accuracy"], judged_texts(found)
    row = {
        "name": run.folder.name,
        "model": run.config.model_name,
        "rank": run.config.model.rank if ranked(run.config.model) else None,
        "perplexity": perplexity.summarised(nats, corpus)["perplexity"],
        "accuracy": accuracy,
        "specificity": judged.pop("accuracy"),
        "specificity_error": judged.pop("accuracy_error"),
        "cautions": cautions([run]),
        **judged,
    }
    return row, each


def compare(
    folders: Sequence[Path],
    judge: Judge,
    held: Any,
    out: Path,
    *,
    design: Design,
    options: GenerationOptions = DEFAULT,
    progress: bool = False,
) -> Iterator[tuple[Row, Figures]]:
    """`measure` of each run, one after another; its texts are in `out`, where a second call resumes."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        run = Run.open(folder)
        must_have(held, run.config.data)
        wanted = design.contexts(run, judge.target, options.seed)
        yield measure(run, judge, write(run, wanted, options, out / _file(folder), progress=progress), held)


def beside(measured: Sequence[tuple[Row, Figures]]) -> list[Row]:
    """The rows with their differences to the first model, as `comparison.compared`: of the same contexts and texts."""
    found = compared([Candidate(row["name"], [row], [each]) for row, each in measured])
    return [{**judged, "model": row["model"]} for judged, (row, _) in zip(found, measured, strict=True)]


def examples(out: Path, folders: Sequence[Path], target: str, count: int = 2) -> list[Row]:
    """The first texts of each value, of each model."""
    rows = []
    for folder in folders:
        seen: Counter[str] = Counter()
        for row in files.read_rows(out / _file(folder)):
            value = row["context"][target]
            seen[value] += 1
            if seen[value] <= count:
                rows.append({"name": folder.name, "value": value, "text": row["text"]})
    return rows


def _file(folder: Path) -> str:
    """Where the texts of a run are: two names, since runs of several searches may share one."""
    return "-".join(folder.resolve().parts[-2:]) + ".jsonl"
