"""One training from a table to a run folder: read the table, train, and keep what the run was trained on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from factorcell import files, lock
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.columns import must_have
from factorcell.data.corpus import Corpus, known_targets, target_counts
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.tables import name_of
from factorcell.evaluation.cautions import context_gain, told_gain
from factorcell.evaluation.text_figures import key_of
from factorcell.finite import shown
from factorcell.model import model_card
from factorcell.model.run import Run, first_files
from factorcell.training.loop import train
from factorcell.training.plan import Asked, Budget, Plan, plan, resumed, said_config, unsaid
from factorcell.training.proximal import sparse_bias_of

HELD_OUT = 0.05  # share of the training rows that are held out without a development table
OUTLIER = 15.0  # standard deviations between a column's largest number and its mean that are remarked on
UNKNOWN = 0.2  # share of out-of-vocabulary targets that is remarked on

Say = Callable[[str], None]


def fit(
    source: Any,
    dev: Any,
    config: Asked,
    folder: str | Path,
    *,
    budget: Budget | None = None,
    resume: bool = False,
    say: Say | None = None,
) -> Run:
    """Train a run in `folder` on a table and return it with its best weights.

    A `config` that is a mapping, `{"data": {"context": ["hotel"]}}`, sets some options, and the others follow from the
    table and the `budget`. A `Config` sets all options.

    Args:
        source: The training table: a file, rows, or several of them.
        dev: The development table. Without it, 5 % of the rows are held out (their words count for the vocabulary).
        config: A `Config`, or a mapping of some options by section: `{"data": {"context": ["hotel"]}}`.
        folder: The run folder to write.
        budget: The time or work of the training.
        resume: Whether to resume in a folder that exists; its config must be the same.
        say: A function that takes lines about the progress; progress bars go to standard error.

    Raises:
        UserError: If the folder exists, a table or option is not valid, or the loss is not finite.
    """
    folder = Path(folder)
    with begun(folder, resume, say) as resumes:
        corpus, held = read(source, dev, said_config(config), progress=say is not None)
        if resumes:
            run = Run.open(folder, trained=False)
            check_same(run, resumed(config, run.config).config, corpus)
        else:
            made = plan(config, corpus, held, budget)
            for line in () if isinstance(config, Plan) else made.lines():  # a Plan was reported where it was made
                tell(say, line)
            run = Run.create(folder, made.config, corpus.tokenizer, corpus.schema)
        learn(run, corpus, held, resume=resumes, say=say)
        finish(run, corpus, held, source, chosen=unsaid(config))
    return run


@contextmanager
def begun(folder: Path, resume: bool, say: Say | None = None) -> Iterator[bool]:
    """Lock `folder` for one training; yield whether to resume the run there.

    A run that has learned nothing yet is replaced by a new one. `UserError` if the folder holds anything else.
    """
    _resumes(folder, resume)  # before it waits for the lock
    with lock.writing(folder, say):
        resumes = _resumes(folder, resume)  # another training may have ended before the lock was free
        if not resumes:
            files.new_folder(folder, first_files(), resumable=True)
        yield resumes


def _resumes(folder: Path, resume: bool) -> bool:
    if files.is_new(folder, first_files()):
        return False
    if not (resume and (folder / "config.json").exists()):
        raise files.occupied(folder, resumable=True)
    return True


def learn(run: Run, corpus: Corpus, dev: Corpus, *, resume: bool, say: Say | None) -> None:
    """Train a run to its end; report what it reads, and why it ended early if it did."""
    tell(say, f"{len(corpus):,} texts, {corpus.targets:,} targets; {len(dev):,} texts held for development")
    tell(say, f"{len(run.tokenizer):,} tokens in the vocabulary ({run.config.tokenizer.kind})")
    for variable in run.schema.variables:
        tell(say, variable.describe())
    tell(say, f"{run.model.parameter_count():,} parameters")
    for line in remarks(corpus, dev):
        tell(say, line)
    ended = resume and (run.folder / "training.json").exists()
    if ended:
        tell(say, f"{run.folder}: nothing to do, its training has come to its end before")
    for _ in train(run, corpus, dev, resume=resume, progress=say is not None):
        pass
    if say is not None and not ended and (last := run.log()[-1])["step"] < last["steps"]:
        of = f"step {last['step']:,} of {last['steps']:,}"
        in_vain = f"none of the last evaluations ({run.config.training.patience}) brought a lower perplexity"
        say(f"patience ended it at {of}: {in_vain}")


def remarks(corpus: Corpus, dev: Corpus) -> Iterator[str]:
    """Yield a line for each property of the tables that makes a training less useful."""
    if np.array_equal(corpus.tokens, dev.tokens):
        yield "the development texts are the training texts: their perplexity says nothing of new ones; give others"
    unknown = 1 - float(known_targets(dev).mean())
    if unknown > UNKNOWN and not corpus.tokenizer.is_character_level:
        yield (
            f"{unknown:.0%} of the development targets are out of vocabulary; "
            "a model of characters knows all: --tokenizer char"
        )
    for variable in corpus.schema.numbers:
        if variable.low >= 0 and variable.high > variable.mean + OUTLIER * variable.deviation:
            yield (
                f"{variable.name}: a few values are far larger than all others, up to {variable.high:.4g} "
                f"where the mean is {variable.mean:.4g}; a column of their logarithms says more"
            )
    for variable in corpus.schema.categories:
        if not variable.rare and len(variable.values) == 2:
            yield f"{variable.name} says nothing: all texts have {variable.values[1]!r}, or no value"
        if variable.rare and len(variable.values) == 1:
            least = f"{variable.least} texts, the minimum (--min-context-count or --min-user-count)"
            yield f"{variable.name} says nothing: no value has {least}"


def read(source: Any, dev: Any, config: Config, *, progress: bool) -> tuple[Corpus, Corpus]:
    """Read training and development texts; without `dev` the latter are held out."""
    if dev is not None:
        must_have(dev, config.data)
    corpus = prepare(source, config, progress=progress)
    if dev is None:
        return corpus.split(HELD_OUT, config.training.seed)
    return corpus, prepare(dev, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")


def finish(
    run: Run,
    corpus: Corpus,
    held: Corpus,
    source: Any,
    *,
    finetuned: files.Row | None = None,
    chosen: Sequence[str] = (),
) -> None:
    """Write into the folder of a trained run what it was trained on, what its context gains, and its card.

    `held` are the development texts, `chosen` the options that followed from the table, `finetuned` the facts of a
    fine-tuning.
    """
    kept: files.Row = {"texts": len(corpus), "targets": corpus.targets, "source": name_of(source)}
    kept |= {"development_key": key_of(held), "context": context_gain(run, held)}
    if chosen:
        kept["chosen"] = list(chosen)
    if finetuned:
        kept["finetuned"] = finetuned
    if bias := sparse_bias_of(run):
        kept["sparse_bias"] = bias.counts()
    files.write_json(run.folder / "training.json", kept)
    run.save_unigrams(target_counts(corpus))
    data = run.config.data
    if len(corpus.users) and corpus.tokenizer.is_character_level:
        TextCounts.of_corpus(corpus, data.min_text_count, data.min_text_users).save(run.folder / POPULARITY)
    model_card.write(run)


def tell(say: Say | None, text: str) -> None:
    """Report a line of progress, unless `say` is None."""
    if say is not None:
        say(text)


def check_same(run: Run, config: Config, corpus: Corpus) -> None:
    """Refuse to resume with other options or other data."""
    old, new = run.config.to_dict(), config.to_dict()
    for section in old:
        for key, value in old[section].items():
            if (now := new[section][key]) != value and key not in ("threads", "device"):
                raise UserError(f"{run.folder} was begun with {key} = {value!r}, not {now!r}; nothing resumed")
    if run.tokenizer.tokens != corpus.tokenizer.tokens or run.schema != corpus.schema:
        raise UserError(f"{run.folder} was begun with other training data; nothing resumed")


def summary(run: Run) -> str:
    """Return the best development figures of a run in one line."""
    best = run.best()
    assert best is not None  # a training ends with an evaluation
    return (
        f"development perplexity {shown(best['perplexity'], '.2f')} ({shown(best['perplexity_known'], '.2f')} without "
        f"out-of-vocabulary targets) at step {best['step']} of {best['steps']}, {run.minutes():.1f} minutes"
        f"{told_gain(run)}"
    )
