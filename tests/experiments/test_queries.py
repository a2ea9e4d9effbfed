"""Completion for users that no model was trained on: whole users in each part, and what each adds to a mean."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import corpora
import study
import thesis_queries
import thesis_queries_trials
from factorcell.bootstrap import Interval
from factorcell.completion.online import Learner
from factorcell.completion.replay.streams import Stream
from factorcell.completion.replay.systems import Unpersonalised
from factorcell.data.cache import prepare
from factorcell.data.counts import POPULARITY
from factorcell.model.run import Run
from pages import beside, completion, verdicts
from pages.results import Results
from tests.experiments.test_tables import by_name
from tests.small import make_letters


@pytest.mark.parametrize("row", thesis_queries.ROWS)
def test_the_library_knows_every_option(row: str) -> None:
    """The three models adapt what they say, and no softmax bias, as in chapter 5."""
    model = thesis_queries.EXPERIMENT.config(study.Training(row, 1), 1).model
    assert model.adapt == (() if row == "unadapted" else (row,))
    assert model.output_bias == ()


def test_control_codes_learn_of_nobody(tmp_path: Path) -> None:
    """They are replayed as a model that tells nobody apart: one without a vector that could be moved."""
    found = thesis_queries.EXPERIMENT.config(study.Training(thesis_queries.CODES, 0), 1)
    assert (found.data.user, found.model.adapt, found.model.output_bias) == ("user", ("prefix",), ())
    config = replace(found, data=replace(found.data, min_count=1, min_user_count=1))
    said = [{"text": "fix it", "user": who} for who in ("amy", "ben") * 3]
    corpus = prepare(said, config.data)
    run = Run.create(tmp_path / "run", config, corpus.vocabulary, corpus.schema)
    assert corpus.frequent is not None
    corpus.frequent.counted(1, 1).save(run.folder / POPULARITY)
    row, systems = thesis_queries.systems_of(run, {}, tuple(thesis_queries.RULES), beyond=False)
    assert row == {}
    assert isinstance(systems["mrr"], Unpersonalised)
    rows = thesis_queries.EXPERIMENT.rows
    assert rows["ngram"] == rows["unadapted"]


def test_the_user_vector_of_chapter_5_is_the_embedding_itself() -> None:
    """But for that the model is the FactorCell."""
    found = thesis_queries.EXPERIMENT.config(study.Training(thesis_queries.NO_LAYER, 0), 1)
    assert found.model.context_layer == "none"
    factor = thesis_queries.EXPERIMENT.config(study.Training("factor", 0), 1)
    assert replace(found.model, context_layer=factor.model.context_layer) == factor.model


def test_no_user_is_in_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of few texts and of very many are trained on; of the others the first texts are taken, in their order."""
    monkeypatch.setattr(thesis_queries, "TUNED", 25)
    monkeypatch.setattr(thesis_queries, "KEPT", 30)
    monkeypatch.setattr(thesis_queries, "TEXTS", 200)
    counts = {f"u{n}": 15 + 2 * n for n in range(20)} | {"most": 500}
    pairs = [(user, n) for user, count in counts.items() for n in range(count)]
    rows = [{"text": f"{user} {n}", "user": user, "time": f"{n:04}"} for user, n in pairs]
    others = [{"text": f"other {n}", "user": "other", "time": f"{n:04}"} for n in range(40)]
    for part, texts in (("train", rows), ("dev", others)):
        corpora.written(tmp_path / "commits" / f"{part}.parquet", pa.Table.from_pylist(texts))
    made = {part: corpora.read(path) for part, path in thesis_queries.tables(tmp_path, tmp_path, 1.0).items()}
    users = {part: set(table["user"].to_pylist()) for part, table in made.items()}
    assert users["train"] | users["dev"] | users["test"] == {*counts, "other"}
    assert "other" in users["test"]
    counts["other"] = 40
    assert users["dev"].isdisjoint(users["test"])
    assert users["train"].isdisjoint(users["dev"] | users["test"])
    assert {"u0", "u1", "u2", "most"} <= users["train"]
    for part, most in (("dev", 25), ("test", 30)):
        assert users[part]
        for user in users[part]:
            own = [text for text in made[part]["text"].to_pylist() if text.startswith(f"{user} ")]
            assert own == [f"{user} {n}" for n in range(min(most, counts[user]))]


def test_ranks_are_those_of_all_queries() -> None:
    """What users add makes the mean over queries, of each kind of prefix and of late texts; users without any add 0."""
    random = np.random.default_rng(0)
    streams = [Stream(name, (), ()) for name in "abcd"]
    rows: list[dict[str, Any]] = [
        {
            "user": "abc"[random.integers(3)],
            "rank": int(random.integers(1, 11)) if random.random() < 0.7 else None,
            "seen": bool(random.integers(2)),
            "position": int(random.integers(100)),
            "prefix_length": int(random.integers(2, 40)),
            "query_length": int(random.integers(3, 60)),
        }
        for _ in range(400)
    ]
    found = thesis_queries.ranks(rows, streams, "mrr", thesis_queries.KINDS)
    kinds = {
        "mrr": rows,
        "mrr_seen": [row for row in rows if row["seen"]],
        "mrr_unseen": [row for row in rows if not row["seen"]],
        "mrr_late": [row for row in rows if row["position"] >= 50],
        "mrr_after_5": [row for row in rows if 5 <= row["position"] < 10],
        "mrr_after_50": [row for row in rows if row["position"] >= 50],
        "mrr_prefix_25": [row for row in rows if row["position"] >= 50 and row["prefix_length"] >= 25],
        "mrr_query_31": [row for row in rows if row["position"] >= 50 and 31 <= row["query_length"] < 46],
    }
    assert "mrr_after_100" not in found
    for name in ("after", "prefix", "query"):
        parts = [sums.below.sum() for key, sums in found.items() if key.startswith(f"mrr_{name}_")]
        assert sum(parts) == (400 if name == "after" else found["mrr_late"].below.sum())
    for name, some in kinds.items():
        wanted = np.mean([1 / row["rank"] if row["rank"] else 0 for row in some])
        assert found[name].ratio == pytest.approx(wanted)
        assert found[name].below.tolist()[3] == 0
        assert found[name].below.sum() == len(some)


def test_the_table_of_ranks() -> None:
    """Most popular completion comes with the unadapted model; a higher rank is better, and stands as printed or not."""
    random = np.random.default_rng(1)
    streams = [Stream(f"user {n}", (), ()) for n in range(60)]

    def row(name: str, seed: int, share: float) -> dict[str, Any]:
        queries = [
            {"user": f"user {n % 60}", "rank": 1 if random.random() < share else None, "seen": n % 2, "position": n}
            for n in range(3000)
        ]
        figures = thesis_queries.ranks(queries, streams, "mrr", thesis_queries.SPLIT)
        figures |= thesis_queries.ranks(queries, streams, "mpc", thesis_queries.SPLIT) if name == "unadapted" else {}
        sums = {key: study.grouped(value) for key, value in figures.items()}
        ratios = {key: value.ratio for key, value in figures.items()}
        return {"row": name, "seed": seed, "sums": sums, "perplexity": 9.0, "perplexity_online": 8.0 - share, **ratios}

    shares = {"unadapted": 0.2, "concat": 0.4, "factor": 0.6}
    counted = {"row": "ngram", "seed": 0, "sums": {}, "perplexity": 8.25, "perplexity_online": 8.25}
    found = Results.of([counted, *(row(name, seed, share) for name, share in shares.items() for seed in range(3))])
    printed = {name: [0.1, 0.2, 0.3 + n / 10] for n, name in enumerate(("mpc", *shares))}
    published = {"small": printed, "large": printed}
    text = beside.queries(found, published)
    every_line = [line for line in text.splitlines() if line.startswith("|")]
    lines = [line for line in every_line if line.startswith(("| mpc |", "| factor |"))]
    assert len(lines) == 2
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.strip("|").split("|")] for line in every_line}
    online = 6
    assert [cells[name][online] for name in ("mpc", "factor", "ngram", "blend")] == ["", "7.40 ± 0.00", "8.25", ""]
    assert not any(cells["ngram"][1:online])
    assert all(all(line[:online] + line[online + 1 :]) for line in (cells["mpc"], cells["factor"]))
    assert lines[1].startswith("| factor | 0.6") or lines[1].startswith("| factor | 0.5")
    assert "All: of 3 pairs told apart in print 3 differ here beyond chance; of all 3" in text
    assert "where nothing is learned" not in text
    assert "No row yet." in beside.queries(Results.of([]), published)
    told = {"dev_none": 4.0, "dev_adadelta": 3.5, "dev_adadelta with a bound": 3.75, "dev_adagrad": 3.25}
    every = [{**one, **told} for name in shares for one in [row(name, 0, 0.3)]]
    assert (
        "where nothing is learned,\n3.50 by adadelta, 3.75 by adadelta with a bound, 3.25 by adagrad."
        in beside.queries(Results.of(every), published)
    )


def row(name: str, share: float, seed: int) -> dict[str, Any]:
    """A row whose users find a `share` of their texts at the first place, more of them the later they stand."""
    random = np.random.default_rng((seed, round(100 * share)))
    queries = [
        {
            "user": f"u{n % 60}",
            "position": n // 60,
            "rank": 1 if random.random() < share * (1 + n / 12000 * (name == "factor")) else None,
            "seen": True,
            "prefix_length": 2 + n // 60 % 30,
            "query_length": 40,
        }
        for n in range(9000)
    ]
    figures = thesis_queries.ranks(queries, [Stream(f"u{n}", (), ()) for n in range(60)], "mrr", thesis_queries.KINDS)
    sums = {key: study.grouped(value) for key, value in figures.items()}
    return {"row": name, "seed": seed, "sums": sums, **{key: value.ratio for key, value in figures.items()}}


def test_gains_in_ranks_are_shares_of_those_of_another_row() -> None:
    """The point is the ratio of both means; trainings that spread make its interval wider."""
    rows = [row(name, share, seed) for name, share in (("unadapted", 0.3), ("factor", 0.33)) for seed in range(3)]
    found = Results.of(rows)
    gain = found.above("factor", "mrr", "unadapted")
    means = {name: np.mean([one["mrr"] for one in rows if one["row"] == name]) for name in ("unadapted", "factor")}
    assert gain is not None
    assert gain.point == pytest.approx(means["factor"] / means["unadapted"] - 1)
    assert gain.sign == 1
    assert found.above("factor", "mrr", "concat") is None
    assert found.above("factor", "mrr_query_3", "unadapted") is None
    for one in rows:
        if one["row"] == "factor" and one["seed"] == 2:
            one["sums"]["mrr"]["above"] = [0.5 * value for value in one["sums"]["mrr"]["above"]]
    wide = Results.of(rows).above("factor", "mrr", "unadapted")
    assert wide is not None
    assert wide.sign == 0


def test_a_blend_is_held_against_the_model_that_it_blends() -> None:
    """Of the same users and trainings: what all users gain alike has no spread."""
    rows = [row(name, 0.3, seed) for name in ("unadapted", "factor") for seed in range(3)]
    assert beside.blended(Results.of(rows)) == ""
    for one in rows[3:]:
        plain = one["sums"]["mrr"]
        above = [above + 0.01 * below for above, below in zip(plain["above"], plain["below"], strict=True)]
        one["sums"]["blend"] = {**plain, "above": above}
        one["blend"] = one["mrr"] + 0.01
    found = Results.of(rows)
    more = found.within("factor", "blend", "mrr")
    assert more is not None
    assert more == pytest.approx((0.01, 0.01, 0.01), abs=1e-6)
    assert found.within("unadapted", "blend", "mrr") is None
    assert beside.blended(found) == "\nThe blend beside the FactorCell alone: +0.0100 [+0.0100, +0.0100].\n"
    printed = {
        "small": {"unadapted": [0.1] * 3, "factor": [0.2] * 3},
        "large": {"unadapted": [0.1] * 3, "factor": [0.2] * 3},
    }
    lines = [line for line in beside.queries(found, printed).splitlines() if line.startswith("| blend |")]
    mean = np.mean([one["blend"] for one in rows[3:]])
    assert lines[0].split("|")[4].strip(" *").startswith(f"{mean:.3f}")


def test_what_completion_reaches() -> None:
    """A line for each system, of the row that has its figures; gains beside those that learn alone."""
    rows = [row(name, share, seed) for name, share in (("unadapted", 0.2), ("factor", 0.4)) for seed in range(3)]
    for one in rows:
        one["perplexity_online"] = 3.5
        for name in {"unadapted": ("mpc",), "factor": ("history", "blend")}[one["row"]]:
            for kind in thesis_queries.SPLIT:
                if f"mrr{kind}" in one:
                    one[name + kind], one["sums"][name + kind] = one[f"mrr{kind}"], one["sums"][f"mrr{kind}"]
    text = completion.reached(Results.of(rows))["What it reaches"]
    lines = by_name(text)
    assert list(lines) == list(completion.SYSTEMS.values())
    assert lines["FactorCell"][0] == lines["blend"][0] == lines["one's own earlier texts"][0] != lines["unadapted"][0]
    assert lines["most popular completion"][0] == lines["unadapted"][0]
    assert lines["FactorCell"][1].startswith("+")
    assert [name for name, cells in lines.items() if cells[1]] == ["FactorCell"]
    assert [name for name, cells in lines.items() if cells[-1]] == ["unadapted", "FactorCell"]
    assert not any(lines["ConcatCell"])
    assert "\nOf 9,000 texts.\n\nThe blend beside the FactorCell alone: +0.0000" in text
    assert "No row yet." in completion.reached(Results.of([]))["What it reaches"]


def test_popular_texts_are_a_row_of_their_own() -> None:
    """Beside the language model that they come with, of the same texts; without rows there is none."""
    rows = [row("unadapted", 0.3, seed) for seed in range(3)]
    for one in rows:
        plain = one["sums"]["mrr"]
        one["sums"]["mpc"] = {**plain, "above": [0.5 * value for value in plain["above"]]}
    found = completion.with_popular(Results.of(rows))
    orders = found.orders("mrr", {"mpc": 0.2, "unadapted": 0.3})
    assert (orders.verdict, orders.why) == ("agrees", "1 of 1 as printed")
    assert found.orders("mrr", {"mpc": 0.3, "unadapted": 0.2}).verdict == "disagrees"
    assert completion.with_popular(Results.of([])).candidates == []


def test_lines_of_gains_in_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three seeds the sign of the interval; of fewer, of few users or of few texts nothing is told."""

    def said(share: float, seeds: int) -> list[str]:
        rows = [row(name, own, seed) for name, own in (("concat", 0.3), ("factor", share)) for seed in range(seeds)]
        return list(verdicts.further(verdicts.Line("F5.2", "x"), Results.of(rows), "mrr_after_100")[3:])

    assert said(0.4, 3)[2] == "agrees"
    assert re.fullmatch(r"\+\d+\.\d to \+\d+\.\d, 3,000 texts of 60 users", said(0.4, 3)[3])
    assert said(0.4, 3)[0].startswith("+")
    assert said(0.1, 3)[2] == "disagrees"
    assert said(0.4, 2) == ["no row", "", "cannot be told", "fewer than 3 seeds"]
    for name, least in (("USERS", 61), ("TEXTS", 3001)):
        with monkeypatch.context() as context:
            context.setattr(verdicts, name, least)
            assert said(0.4, 3)[2] == "cannot be told"
    nothing = verdicts.further(verdicts.Line("F5.2", "x"), Results.of([]), "mrr_after_100")
    assert nothing[3:] == ("no row", "", "cannot be told", "not trained")


def test_short_prefixes_gain_beyond_long_ones() -> None:
    """The difference of two shares gained, its interval as wide as both together."""
    assert verdicts.less(Interval(3.0, 0.0, 6.0), Interval(1.0, -3.0, 5.0)) == Interval(2.0, -3.0, 7.0)
    assert verdicts.less(Interval(3.0), Interval(1.0, -3.0, 5.0)) == Interval(2.0)

    def said(more: float) -> list[str]:
        rows = [row(name, 0.3, seed) for name in ("unadapted", "factor") for seed in range(3)]
        for one in rows:
            if one["row"] == "factor":
                sums = one["sums"]["mrr_prefix_2"]
                sums["above"] = [
                    above + more * below for above, below in zip(sums["above"], sums["below"], strict=True)
                ]
        return list(verdicts.sooner(verdicts.Line("F5.3", "x"), Results.of(rows), "prefix")[3:])

    assert [said(more)[2] for more in (0.3, 0.0, -0.3)] == ["agrees", "cannot be told", "disagrees"]
    shares = [float(said(more)[0].strip("%")) for more in (0.3, 0.0)]
    assert shares[0] - shares[1] == pytest.approx(100, abs=3)  # .3 more of .3
    nothing = verdicts.sooner(verdicts.Line("F5.3", "x"), Results.of([]), "query")
    assert nothing[3:] == ("no row", "", "cannot be told", "not trained")


def test_figures_of_completion() -> None:
    """A line for each range, gains of those that learn; what is not trained says so."""
    words = {"suggested": {"cold": ["up", "upon"], "warm": ["update"]}, "risen": [["a"], ["b", "c"], []]}
    rows = [row("unadapted", 0.3, 0), {**row("factor", 0.33, 0), **words}]
    made = completion.tables(Results.of(rows), [])
    lines = {name: [line for line in text.splitlines() if line.startswith("| ")] for name, text in made.items()}
    assert "| 1 | up | update |" in lines["Table 5.1"]
    assert "| 2 | upon |  |" in lines["Table 5.1"]
    assert "| 2 | c |  |" in lines["Tables 5.3 to 5.5"]
    assert len(lines["Figure 5.2"]) == 2 + len(thesis_queries.PLACES)
    late = next(line for line in lines["Figure 5.2"] if line.startswith("| 100 and more | 0."))
    assert late.split(" | ")[3].startswith("+")
    assert "| 2 to 3 of a prefix | 0." in made["Figure 5.3"]
    assert made["Figure 5.1"].endswith("No row yet.\n")
    nothing = completion.tables(Results.of([]), [])
    assert all(text.endswith("No row yet.\n") for text in nothing.values())


def test_perplexity_and_ranks_of_many_models() -> None:
    """A line for each kind and one of all; the verdict follows from the correlation of all."""
    rows = [
        {"row": f"{kind} {n:02}", "seed": 0, "perplexity_online": 4 + 0.1 * n, "mrr": 0.3 - 0.01 * n, "sums": {}}
        for n in range(5)
        for kind in thesis_queries.ROWS
    ]
    text = completion.against_perplexity(rows)
    assert "| factor | 5 | -1.00 [-1.00, -1.00] | 4.00 | 0.300 | 0.300 | 4.00 |" in text
    assert "| all | 15 |" in text

    def said(sign: int, rows: list[dict[str, Any]]) -> list[str]:
        line = verdicts.Line("F5.1", "x")
        return list(verdicts.going_along(line, completion.together(rows), sign)[3:])

    assert said(-1, rows) == ["r -1.00", "", "agrees", "-1.00 to -1.00, 15 models"]
    assert said(1, rows)[2] == "disagrees"
    assert said(-1, rows[:9]) == ["no row", "", "cannot be told", "not trained"]


def test_trials_are_drawn_once_and_for_all() -> None:
    """Of each kind as many, all different, and the library knows their options."""
    rows = thesis_queries_trials.EXPERIMENT.rows
    assert len({repr(options) for options in rows.values()}) == 3 * thesis_queries_trials.TRIALS
    for name, options in rows.items():
        config = thesis_queries_trials.EXPERIMENT.config(study.Training(name, 0), 1)
        assert config.model.adapt == tuple(thesis_queries.ROWS[name.split()[0]]["model"]["adapt"])
        assert config.model.hidden_size == options["model"]["hidden_size"]
        assert config.model.context_size == config.model.variable_size
        assert options == thesis_queries_trials.drawn(name.split()[0], int(name.split()[1]))


def test_what_somebody_new_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after learning, from one run; the likelier texts are among the frequent ones, by the nats of each."""
    run = make_letters(("fix", "fax", "fib"), data={"context": (), "user": "city"}, adapt=("factor",))
    monkeypatch.setattr(thesis_queries, "PREFIX", "f")
    monkeypatch.setattr(thesis_queries, "WARM", ("fax",) * 9)
    monkeypatch.setattr(thesis_queries, "PAIRS", (("fax", "fax"),))
    monkeypatch.setattr(thesis_queries, "FREQUENT", 3)
    texts = ["fax"] * 5 + ["fix"] * 4 + ["fib"] * 3 + ["rare", "rarer"]
    train = corpora.written(tmp_path / "train.parquet", pa.table({"text": texts}))
    told = thesis_queries.learned(run, train)
    assert all(text.startswith("f") for texts in told["suggested"].values() for text in texts)
    learner = Learner(run)
    user = learner.new()
    for _ in range(2):
        (user,), _ = learner.learn([user], ["fax"])
    frequent = ["fax", "fix", "fib"]
    before, after = (learner.nats(vector[None], frequent) for vector in (learner.unknown, user.vector))
    assert told["risen"] == [[frequent[place] for place in np.argsort(after - before)]]
