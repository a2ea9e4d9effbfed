"""One training from a table to a run folder: read, train, keep what it was trained on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from factorcell import files, lock
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.columns import must_have
from factorcell.data.corpus import Corpus, target_counts
from factorcell.data.counts import POPULARITY, UNITS, TextCounts
from factorcell.data.tables import name_of
from factorcell.evaluation.cautions import context_gain, told_gain
from factorcell.evaluation.text_figures import key_of
from factorcell.finite import shown
from factorcell.model import model_card
from factorcell.model.run import BEGINNING, Run
from factorcell.training import distributed
from factorcell.training.distributed import World
from factorcell.training.loop import watched
from factorcell.training.plan import Asked, Budget, Plan, plan, resumed, said_config, unsaid
from factorcell.training.proximal import sparse_bias_of
from factorcell.training.remarks import remarks

HELD_OUT = 0.05  # of the training rows, where no development table is given

Row = dict[str, Any]
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
    """Train a run in `folder` on the table `source` and return it, with its best weights and its card written.

    A `config` that is a mapping, `{"data": {"context": ["hotel"]}}`, says some options: the others follow from the
    table and the `budget`. A `Config` says all. Without `dev`, 5 % of the rows are held out (their words count for the
    vocabulary). `resume` resumes in a folder that exists, if its config is the same. `say` takes lines about what is
    being done; bars go to standard error. The processes of torchrun train it together; only the first writes and
    speaks.
    """
    folder = Path(folder)
    with (
        begun(folder, resume or distributed.restarted(), say) as going_on,
        distributed.join(said_config(config).training.device) as world,
    ):
        say = say if world.first else None
        with world.first_goes_ahead():  # the others have looked into the folder, and find what was read in the cache
            corpus, held = read(source, dev, said_config(config), progress=say is not None)
        if going_on:
            run = Run.open(folder, trained=False)
            check_same(run, resumed(config, run.config).config, corpus)
        else:
            made = plan(config, corpus, held, budget, share=world.mean)
            for line in () if isinstance(config, Plan) else made.lines():  # whoever made a plan has told it
                tell(say, line)
            make = Run.create if world.first else Run
            run = make(folder, made.config, corpus.vocabulary, corpus.schema)
        learn(run, corpus, held, world, resume=going_on, say=say)
        if world.first:
            finish(run, corpus, held, source, chosen=unsaid(config))
    return run


@contextmanager
def begun(folder: Path, resume: bool, say: Say | None = None) -> Iterator[bool]:
    """Within it nobody else trains in `folder`: whether to resume the run there. The first process holds the lock.

    A run that has learned nothing yet makes room for a new one. `UserError` where there is something else.
    """
    going_on = _resumed(folder, resume)
    if distributed.place()[0]:
        yield going_on
        return
    with lock.writing(folder, say):
        going_on = _resumed(folder, resume)  # whoever held the lock may have ended between our look and our lock
        if not going_on:
            files.new_folder(folder, BEGINNING, resumable=True)
        yield going_on


def _resumed(folder: Path, resume: bool) -> bool:
    """Whether to resume in `folder`."""
    if files.is_new(folder, BEGINNING):
        return False
    if not (resume and (folder / "config.json").exists()):
        raise files.occupied(folder, resumable=True)
    return True


def learn(run: Run, corpus: Corpus, dev: Corpus, world: World | None = None, *, resume: bool, say: Say | None) -> None:
    """Train a run to its end, and report on what, and on an end that nobody might expect."""
    for line in described(run, corpus, dev):
        tell(say, line)
    ended = resume and (run.folder / "training.json").exists()
    if ended:
        tell(say, f"{run.folder}: nothing to do, its training has come to its end before")
    for _ in watched(run, corpus, dev, world, resume=resume, progress=say is not None):
        pass
    if say is not None and not ended and (last := run.log()[-1])["step"] < last["steps"]:
        of = f"step {last['step']:,} of {last['steps']:,}"
        in_vain = f"none of the last evaluations ({run.config.training.patience}) brought a lower perplexity"
        say(f"patience ended it at {of}: {in_vain}")


def read(source: Any, dev: Any, config: Config, *, progress: bool) -> tuple[Corpus, Corpus]:
    """Training and development texts; without `dev` the latter are held out."""
    if dev is not None:
        must_have(dev, config.data)
    corpus = prepare(source, config.data, progress=progress)
    if dev is None:
        return corpus.split(HELD_OUT, config.training.seed)
    return corpus, prepare(dev, config.data, vocabulary=corpus.vocabulary, schema=corpus.schema, unknown="group")


def finish(
    run: Run,
    corpus: Corpus,
    held: Corpus,
    source: Any,
    *,
    finetuned: Row | None = None,
    chosen: Sequence[str] = (),
) -> None:
    """Keep in the folder of a trained run what it was trained on, from which run it came, and write its card.

    Also what its context gains on the development texts `held`, and the key that they have. `chosen` are the options
    that nobody said.
    """
    kept: Row = {"texts": len(corpus), "targets": corpus.targets, "source": name_of(source)}
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
    if len(corpus.users) and data.unit in UNITS:
        TextCounts.of_corpus(corpus, data.min_text_count, data.min_text_users).save(run.folder / POPULARITY)
    model_card.write(run)


def tell(say: Say | None, text: str) -> None:
    """Report a line of progress, unless `say` is None."""
    if say is not None:
        say(text)


def described(run: Run, corpus: Corpus, dev: Corpus) -> list[str]:
    """What was read and how, as lines."""
    return [
        f"{len(corpus):,} texts, {corpus.targets:,} targets; {len(dev):,} texts held for development",
        f"{len(run.vocabulary):,} tokens in the vocabulary ({run.config.data.unit} units)",
        *(variable.describe() for variable in run.schema.variables),
        f"{run.model.parameter_count():,} parameters",
        *remarks(corpus, dev, run.config.data.unit),
    ]


def check_same(run: Run, config: Config, corpus: Corpus) -> None:
    """Refuse to resume with other options or other data."""
    check_options(run.folder, run.config, config)
    if run.vocabulary.tokens != corpus.vocabulary.tokens or run.schema != corpus.schema:
        raise UserError(f"{run.folder} was begun with other training data; nothing resumed")


def check_options(folder: Path, begun: Config, config: Config) -> None:
    """Refuse to resume what was `begun` in a folder with other options."""
    old, new = begun.to_dict(), config.to_dict()
    for section in old:
        for key, value in old[section].items():
            if (now := new[section][key]) != value and key not in ("threads", "device"):
                raise UserError(f"{folder} was begun with {key} = {value!r}, not {now!r}; nothing resumed")


def summary(run: Run) -> str:
    """The best development figures of a run in one line."""
    best = run.best()
    assert best is not None  # a training ends with an evaluation
    return (
        f"development perplexity {shown(best['perplexity'], '.2f')} ({shown(best['perplexity_known'], '.2f')} without "
        f"out-of-vocabulary targets) at step {best['step']} of {best['steps']}, {run.minutes():.1f} minutes"
        f"{told_gain(run)}"
    )
