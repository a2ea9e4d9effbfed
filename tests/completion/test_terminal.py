"""A person at the command line and in the terminal: what was entered is learned and comes up again."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from factorcell.commands.interactive import InteractiveCompleter, read_lines
from factorcell.commands.main import main
from factorcell.completion.blend import SOURCES, new_suggester
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, learn_one
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.model.run import Run
from tests.small_runs import make_letters


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder of letters, whose users are cities, with popular texts."""
    made = make_letters(data={"user": "city", "context": (), "min_user_count": 1}, spread=0.8)
    run = Run.create(tmp_path / "run", made.config, made.tokenizer, made.schema)
    run.model.load_state_dict(made.model.state_dict())
    run.save_weights({})
    TextCounts({"abc": 5, "abba": 3, "cab": 4}, 12).save(run.folder / POPULARITY)
    return run.folder


def test_what_rose_most_is_what_the_model_says(folder: Path) -> None:
    run = Run.open(folder)
    user, texts = User.new(run), ["abc", "abba", "cab", "b"]
    for _ in range(4):
        user = learn_one(run, user, "abab")
    learner = Learner(run)
    risen = learner.largest_gains(user, texts, 4)
    before, after = learner.nats(learner.unknown_vector[None], texts), learner.nats(user.vector[None], texts)
    rises = dict(zip(texts, before - after, strict=True))
    assert [text for text, _ in risen] == sorted(texts, key=lambda text: -rises[text])
    assert [nats for _, nats in risen] == pytest.approx([rises[text] for text, _ in risen], abs=1e-5)
    assert learner.largest_gains(user, texts, 2) == risen[:2]
    assert learner.largest_gains(user, []) == []
    assert learner.largest_gains(learner.new(), texts)[0][1] == pytest.approx(0, abs=1e-5)


def test_history_and_explanation_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["complete", str(folder), "a", "--threads", "1"]
    assert main([*command, "--history", "acca; acca ;;b", "--explain", "--count", "3"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "share", "source", "probability", *SOURCES]
    scores = [sum(map(float, line.split()[4:])) for line in lines[:3]]
    assert scores == sorted(scores, reverse=True)
    assert lines[4] == "popular texts whose log probability the history raised most"
    assert {line.split()[0] for line in lines[6:]} == {"abc", "abba", "cab"}
    assert main([*command, "--history", "acca;b", "--explain", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "acca" in [row.get("text") for row in rows]
    assert sum("risen" in row for row in rows) == 3
    assert main([*command, "--context", "city=Oslo"]) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    found = Completer(Run.open(folder)).complete("a", context={"city": "Oslo"})
    assert [line.split()[0] for line in shown] == [one.text for one in found], "a known user has no history to blend"
    assert main([*command, "--context", "city=Oslo", "--explain"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split() == ["text", "probability"]
    assert said.err.splitlines()[-1].startswith("--explain: all suggestions are from the model alone")
    assert said.err.endswith("--context has a known user, and only new users have texts to blend\n")
    for wrong, message in (
        (["--context", "city=Oslo", "--history", "a"], "--history requires a run trained with --user"),
        (["--context", "city=Olso"], "city 'Olso' was never seen in training"),
    ):
        assert main([*command, *wrong]) == 2
        assert message in capsys.readouterr().err
    assert main(["complete", str(folder)]) == 2
    assert "standard input is not a terminal" in capsys.readouterr().err


def test_probability_is_the_models_whoever_types(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For somebody of training and for a new user, of whom it is no share of what is blended.

    People see what orders the list, in a table and in the menu: of a blend the share among all candidates.
    """
    run = Run.open(folder)
    command, completer, learner = ["complete", str(folder), "a", "--threads", "1"], Completer(run), Learner(run)
    user = learn_one(run, User.new(run), "acca")

    def nats(text: str, who: User | None) -> float:
        """Of the whole text."""
        known = run.score({"text": text, "city": "Oslo"})[0]["nats"]
        return float(known if who is None else learner.nats(who.vector[None], [text])[0])

    for more, who, context in ((["--context", "city=Oslo"], None, {"city": "Oslo"}), (["--history", "acca"], user, {})):
        best = completer.complete("a", who, context, k=1)[0]
        typed = nats(best.text, who) + best.log_probability  # nats of the "a" that all texts begin with
        assert main([*command, *more, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(rows) == 10
        wanted = [np.exp(typed - nats(row["text"], who)) for row in rows]
        assert [row["probability"] for row in rows] == pytest.approx(wanted, abs=1e-5)
        assert main([*command, *more]) == 0
        header, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
        assert header == (["text", "probability"] if who is None else ["text", "share", "source"])
        assert [line[0] for line in lines] == [row["text"] for row in rows]
        shares = [float(line[1]) for line in lines]
        assert shares == sorted(shares, reverse=True)
        assert shares == pytest.approx([np.exp(row["log_probability"]) for row in rows], rel=0.05)
        assert who is None or [line[2] for line in lines] == [row["source"] for row in rows]
        menu = InteractiveCompleter(run, new_suggester(run), who, context, 10)
        found = list(menu.get_completions(Document("a"), CompleteEvent()))
        assert [[one.text, *one.display_meta_text.split()] for one in found] == lines
    assert not np.allclose(shares, [row["probability"] for row in rows], atol=0.01)


def test_lines_in_the_terminal_are_learned(folder: Path) -> None:
    run = Run.open(folder)
    source = new_suggester(run)
    menu = InteractiveCompleter(run, source, User.new(run), {}, 5)
    with create_pipe_input() as keys:
        keys.send_text("acca\rb\r   \rab\x03\x04")  # the third is empty, the fourth is dropped
        user = read_lines(menu, input=keys, output=DummyOutput())
    expected = learn_one(run, learn_one(run, User.new(run), "acca"), "b")
    assert user is not None
    assert np.array_equal(user.vector, expected.vector)
    assert user.history == expected.history
    document = Document("ac")
    found = list(menu.get_completions(document, CompleteEvent()))
    assert [one.text for one in found] == [one.text for one in source.complete("ac", user, k=5)]
    assert "acca" in [one.text for one in found]
    assert {one.start_position for one in found} == {-2}
    assert list(menu.get_completions(Document("a" * 500), CompleteEvent())) == []


def test_own_texts_come_up_whatever_letters_they_were_written_in(tmp_path: Path) -> None:
    made = make_letters(data={"user": "city", "context": (), "min_user_count": 1, "lowercase": True})
    run = Run.create(tmp_path / "run", made.config, made.tokenizer, made.schema)
    run.save_weights({})
    TextCounts({"abc": 5}, 5).save(run.folder / POPULARITY)
    run = Run.open(run.folder)
    user = learn_one(run, User.new(run), "Abca")
    for prefix in ("ab", "Ab"):
        found = new_suggester(run).complete(prefix, user)
        assert "history" in next(one.source for one in found if one.text == "abca")


def test_no_source_suggests_what_is_not_allowed(folder: Path) -> None:
    run = Run.open(folder)
    free, strict = new_suggester(run), new_suggester(run, is_allowed=lambda text: "bb" not in text)
    user = learn_one(run, learn_one(run, User.new(run), "abba"), "abbc")
    found = free.complete("a", user)
    assert {"abba", "abbc"} <= {one.text for one in found}
    found = strict.complete("a", user)
    assert len(found) == 10
    assert [one.text for one in found if "bb" in one.text] == []
    assert "abc" in [one.text for one in found if "popularity" in one.source]


def test_people_in_many_threads_get_what_each_gets_alone_bit_for_bit(folder: Path) -> None:
    run = Run.open(folder)
    source = new_suggester(run)
    random = np.random.default_rng(0)
    people = [["".join(random.choice(list("abc"), 5)) for _ in range(3)] for _ in range(16)]

    def live(texts: list[str]) -> list[object]:
        user, seen = User.new(run), list[object]()
        for text in texts:
            seen.append(source.suggest(source.type(source.begin(user), text[:2]), 5))
            user = learn_one(run, user, text)
            seen.append(user.to_bytes())
        return seen

    alone = [live(texts) for texts in people]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(live, people))
    assert together == alone
    assert len({str(lived) for lived in alone}) == 16
