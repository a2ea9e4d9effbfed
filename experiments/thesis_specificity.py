"""Chapter 6 of the thesis: does the text that a model writes fit its context? fastText judges, trained on real texts.

    python experiments/thesis_specificity.py imdb --data DATA --out OUT            # tables 6.1 to 6.4
    python experiments/thesis_specificity.py ratings --data DATA --out OUT         # table 6.4, of hotels
    python experiments/thesis_specificity.py hotels --data DATA --out OUT          # table 6.5
    python experiments/thesis_specificity.py imdb_prefix --data DATA --out OUT     # beside them; and of the other two
    python experiments/thesis_specificity.py ratings_trials --data DATA --out OUT  # figures 6.1, 6.2 (hotels: 6.3, 6.4)

The models are those of tacl.py, beside them of tacl_baselines.py, for figures those of tacl_trials.py; what is not
trained yet is. Films and hotels are written for their rating, which every model was given; hotels also for the class of
their chain, which none was, at five stars. What models write of films fits alike, whatever the model, so figures are of
hotels alone.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import corpora
import hotels
import samples
import study
import tacl
import tacl_trials
from corpora import Tables
from factorcell.evaluation import text_figures
from factorcell.evaluation.judge import Judge, JudgeOptions
from factorcell.evaluation.specificity import write
from factorcell.finite import is_number
from factorcell.generation.generate import GenerationOptions, every
from factorcell.model.run import Run
from study import Experiment, Measured, Row

# Of tables 6.1 to 6.3, of films where print has restaurants. Their marks go, as texts of imdb have none; print's second
# speaks of the food.
TEMPLATES = (
    "my wife and i saw this and ____",
    "this was my first time watching this and the acting was ____",
    "i will ____ again",
)
# The first words of a review, none of which ends before: all are as long, and the most probable one is kept.
BEAM = GenerationOptions(
    "stochastic", max_tokens=70, min_tokens=70, no_repeat_ngram=3, width=120, grow=8, length_penalty=0.0
)
KEPT = ("deviation", "tokens", "distinct_2", "repeated", "copied_5")  # of what the judge says of texts
REAL = ("accuracy", "deviation", "copied_5")  # and of what it says of real ones
Wanted = tuple[dict[str, str], str]  # a context, and the value that its text is to be judged as


@dataclass(frozen=True)
class Writing:
    """What models of the set `of` write: texts to be judged by `target`, whose values have an `order`, by `options`.

    So many texts of each model of a table, and of each trial of a figure, or none.
    """

    of: str
    target: str
    options: GenerationOptions
    texts: int
    of_trials: int = 0
    order: tuple[str, ...] = ()

    @property
    def classes(self) -> bool:
        """Whether texts are written for the class of a hotel, which no model was given."""
        return self.target == "class"


SHORTER = replace(BEAM, max_tokens=40, min_tokens=40, width=50, grow=4)
SETS = {
    "imdb": Writing("imdb", "rating", BEAM, 200),
    "ratings": Writing("hotels", "rating", SHORTER, 2000, 1000),
    "hotels": Writing("hotels", "class", SHORTER, 400, 1000, hotels.CLASSES),
}


def wanted(run: Run, name: str, number: int) -> list[Wanted]:
    """About `number` contexts, the same for all models: every rating as often, or hotels of chains by chance."""
    if not SETS[name].classes:
        return of_ratings(run, number)
    classes = {hotel: hotels.class_of(hotel) for hotel in run.schema.variable("hotel").values[1:]}
    of_chains = [(hotel, found) for hotel, found in classes.items() if found]
    drawn = np.random.default_rng(0).integers(len(of_chains), size=number) if of_chains else ()
    return [({"hotel": of_chains[place][0], **hotels.BEST}, of_chains[place][1]) for place in drawn]


def of_ratings(run: Run, number: int) -> list[Wanted]:
    """About `number` contexts, the same for all models: every rating as often, and hotels, if any, by chance."""
    ratings, random = every(run.schema, "rating"), np.random.default_rng(0)
    contexts = [({"rating": rating}, rating) for rating in ratings for _ in range(number // len(ratings))]
    if "hotel" not in [variable.name for variable in run.schema.variables]:
        return contexts
    names = run.schema.variable("hotel").values[1:]
    if not names:  # in a trial all of them may be rare
        return []
    return [({**context, "hotel": names[random.integers(len(names))]}, value) for context, value in contexts]


def file_of(run: Path, name: str, number: int) -> Path:
    """The texts that a run has written."""
    return run.with_name(f"{run.name}-{name}-{number}.jsonl")


def tables(name: str, of: Experiment, data: Path, folder: Path, share: float) -> Tables:
    """The texts that models are trained on, and those that their judge learns from and is judged by."""
    made = of.tables(data, folder, share)
    for part in ("train", "test"):
        source = made[part]
        classed = source.with_name(f"{source.stem}-classes.parquet")
        made[f"labelled_{part}"] = source
        if SETS[name].classes:
            made[f"labelled_{part}"] = corpora.kept(classed, partial(hotels.with_classes, source))
    return made


def measure(run: Run, tables: Tables, name: str, number: int) -> Measured:
    """How many of a run's texts are judged to be what they were written for; for tables also what fills a gap."""
    how, contexts = SETS[name], wanted(run, name, number)
    if not contexts:
        return Measured({})
    judge = judge_of(run, *labelled(tables), how.target, how.order)
    path = file_of(run.folder, name, number)
    texts = write(run, [context for context, _ in contexts], how.options, path)
    found, row = fitting(judge, texts, contexts), Row()
    if how.classes:
        row |= of_towns([one["text"] for one in texts], [context["hotel"] for context, _ in contexts], tables)
    if name == "imdb" and number == how.texts:
        row |= samples.tried("fillers", partial(samples.fillers, run, TEMPLATES, "rating"))
    return found | Measured(row)


def labelled(tables: Tables) -> tuple[Path, Path]:
    """The texts that a judge learns from, and those that it is judged by."""
    return tables["labelled_train"], tables["labelled_test"]


def judge_of(run: Run, train: Path, held: Path, target: str, order: tuple[str, ...] = ()) -> Judge:
    """Who tells the values of `target` apart, by the words of a run, and how well of real texts that are `held` out."""
    asked = JudgeOptions(target, "fasttext", order)
    return Judge.train_on(train, run.config.data, asked, held=held, vocabulary=run.vocabulary)


def fitting(judge: Judge, texts: Sequence[Row], contexts: Sequence[Wanted]) -> Measured:
    """How many of the texts are judged to be what they were written for, and the same of real ones."""
    target = judge.target
    rows = [{"text": row["text"], target: value} for row, (_, value) in zip(texts, contexts, strict=True)]
    judged, fits = judge.judge_each(rows)
    row: Row = {"specificity": judged["accuracy"], **{key: judged[key] for key in KEPT}}
    row["real"] = {key: judge.real[key] for key in REAL if is_number(judge.real.get(key))}
    key = hashlib.sha256(json.dumps(contexts).encode()).hexdigest()[:16]
    return Measured(row, {"specificity": text_figures.of_right(key, fits, np.ones_like(fits))})


def of_towns(texts: Sequence[str], written_for: Sequence[str], tables: Tables) -> Row:
    """How many texts mention a town, and how many real ones, whose figures have names that begin with real."""
    towns, real = hotels.towns(tables["train"]), corpora.read(tables["labelled_test"])
    told = hotels.mentioned(real["text"].to_pylist(), real["hotel"].to_pylist(), towns)
    return {**hotels.mentioned(texts, written_for, towns), **{f"real_{key}": share for key, share in told.items()}}


def experiment(name: str, of: Experiment, own: str, number: int) -> Experiment:
    """What the models of an experiment write of a set, so many texts each; rows are of `own`."""
    measured = partial(measure, name=name, number=number)
    return replace(of, name=f"{own}_{name}", runs=of.name, tables=partial(tables, name, of), measure=measured)


def of_prefix(of: str) -> Experiment:
    """The models of a set that have their values as the first words of a text, which tacl_baselines.py trains."""
    return replace(tacl.experiment(of), name=f"tacl_baselines_{of}", rows={"prefix": tacl.options("prefix")})


EXPERIMENTS: dict[str, Experiment] = {}
for name, how in SETS.items():
    EXPERIMENTS[name] = experiment(name, tacl.experiment(how.of), "specificity", how.texts)
    EXPERIMENTS[f"{name}_prefix"] = experiment(name, of_prefix(how.of), "specificity_prefix", how.texts)
    if how.of_trials:
        drawn = tacl_trials.experiment(how.of)
        EXPERIMENTS[f"{name}_trials"] = experiment(name, drawn, "specificity_trials", how.of_trials)
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
