"""Anonymous runs: no file contains the name of a user, and every user is unknown to the run."""

from pathlib import Path
from typing import Any

import pytest

from factorcell import Completer
from factorcell.completion import User, learn_one
from factorcell.config import Config
from factorcell.data.columns.schema import UNKNOWN_VALUE
from factorcell.errors import UserError
from factorcell.evaluation.classification import classify
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.text_figures import save_result
from factorcell.runs.run import Run
from factorcell.training.fit import fit

NAMES = ("Ingeborg Bachmann", "Ödön von Horváth", "zz-rare-zz")
ROWS: list[dict[str, Any]] = [
    {"text": text, "who": who, "place": place}
    for who in (*NAMES[:2] * 4, NAMES[2])
    for text, place in (("the sea", "Graz"), ("the sun", "Wien"), ("a wave", "Graz"))
]
DATA = {"tokenizer": "char", "user": "who", "context": ["place"], "min_count": 1, "min_user_count": 7,
        "min_context_count": 1}  # fmt: skip
MODEL = {"embedding_size": 4, "hidden_size": 5, "context_size": 2, "variable_size": 2, "rank": 1}


def train_run(folder: Path, **data: Any) -> Run:
    training = {"epochs": 2, "batch_tokens": 100, "evaluations": 1}
    config = Config.of(**{**DATA, "max_tokens": 20, **data, **MODEL, **training})
    rows = [*ROWS, *({**row, "text": "abcdefghijklmnopqrstuvwxyz"} for row in ROWS)]
    run = fit(rows, dev=ROWS[:4], out=folder, config=config)
    evaluation = evaluate(run, ROWS, by=["who", "place"], unknown="group")
    save_result(run, evaluation.result_row(run, ROWS), evaluation.figures)
    save_result(run, classify(run, ROWS, "who").result_row(run, ROWS, "who"), {})
    return Run.open(folder)


@pytest.fixture(scope="module")
def anonymous(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(tmp_path_factory.mktemp("anonymous") / "run", anonymous=True)


def names_in_files(run: Run) -> set[str]:
    """Return the names of users that any file of a run folder contains, plain or escaped."""
    content = b"".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file())
    forms = {name: (name.encode(), name.encode("unicode_escape"), ascii(name)[1:-1].encode()) for name in NAMES}
    return {name for name, encoded in forms.items() if any(form in content for form in encoded)}


def test_no_file_of_the_folder_names_a_user(anonymous: Run, tmp_path: Path) -> None:
    assert names_in_files(anonymous) == set()
    assert names_in_files(train_run(tmp_path / "run")) >= set(NAMES[:2])  # a run that is not anonymous contains them
    assert b"Graz" in (anonymous.folder / "results.jsonl").read_bytes()  # other columns are not anonymized


def test_an_anonymous_run_reads_every_name_as_the_unknown_user(anonymous: Run) -> None:
    assert anonymous.schema.variable("who").values == (UNKNOWN_VALUE, "<1>", "<2>")
    assert anonymous.schema.variable("place").values[1:] == ("Graz", "Wien")

    def nats(who: str) -> float:
        return float(anonymous.score({"text": "the sea", "who": who, "place": "Graz"})[0])

    assert nats(NAMES[0]) == nats(NAMES[1]) == nats("nobody")
    assert nats("<1>") != nats("<2>")
    with pytest.raises(UserError, match="place 'Linz' was never seen"):
        anonymous.score_rows({"text": "the sea", "who": NAMES[0], "place": "Linz"}, unknown="error")


def test_users_are_learned_online_in_an_anonymous_run(anonymous: Run) -> None:
    user = learn_one(anonymous, User.new(anonymous), "the sea", {"place": "Graz"})
    assert user.text_count == 1
    assert Completer(anonymous).complete("the", user)


def test_anonymous_needs_a_user_column() -> None:
    with pytest.raises(UserError, match="anonymous requires the column with the author"):
        Config.of(anonymous=True)
