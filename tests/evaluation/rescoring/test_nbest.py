"""N-best lists from files of all formats, and invalid files."""

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.errors import UserError
from factorcell.evaluation.rescoring.nbest import read_nbest, with_columns, with_references
from factorcell.io import files

ROWS: list[dict[str, Any]] = [
    {
        "id": "a1",
        "hypotheses": [
            {"text": "so it is", "acoustic": -31.5, "lm": -9},
            {"text": "so is it", "acoustic": -32.0, "lm": -9.5},
        ],
        "reference": "so is it",
        "speaker": "ann",
        "hour": 12.5,
    },
    {"id": 7, "hypotheses": [{"text": "", "acoustic": -1.0, "lm": -2.0}], "reference": "", "speaker": None},
]


def kaldi_folder(folder: Path, **files: str) -> Path:
    """Create a folder of files; two underscores in a parameter's name stand for a dot."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_json_lines_and_rows_give_the_same_lists(tmp_path: Path) -> None:
    files.write_rows(tmp_path / "lists.jsonl", ROWS)
    (tmp_path / "lists.gz").write_bytes(gzip.compress((tmp_path / "lists.jsonl").read_bytes()))
    for source in (ROWS, tmp_path / "lists.jsonl", tmp_path / "lists.gz"):
        nbest = read_nbest(source)
        first, second = nbest.utterances
        assert nbest.score_names == ("acoustic", "lm")
        assert (first.id, second.id) == ("a1", "7")
        assert first.texts == ("so it is", "so is it")
        assert first.scores.tolist() == [[-31.5, -9.0], [-32.0, -9.5]]
        assert (first.reference, second.reference) == ("so is it", "")
        assert (first.columns, second.columns) == ({"speaker": "ann", "hour": 12.5}, {"speaker": None})
        assert nbest.has_references
        assert nbest.columns == ["speaker", "hour"]


def test_kaldi_costs_are_negated_and_keep_their_order(tmp_path: Path) -> None:
    folder = kaldi_folder(
        tmp_path / "lists",
        words_text="utt-a-1 so it is\nutt-a-2 so\nutt-b-1\n",
        ac_cost="utt-b-1 5\nutt-a-1 31.5\nutt-a-2 32\n",
        lmwt__nolm="utt-a-1 1\nutt-a-2 2\nutt-b-1 3\n",
        num_done="3\n",
    )
    nbest = read_nbest(folder)
    assert nbest.score_names == ("acoustic", "graph")
    assert [(utterance.id, utterance.texts, utterance.scores.tolist()) for utterance in nbest.utterances] == [
        ("utt-a", ("so it is", "so"), [[-31.5, -1.0], [-32.0, -2.0]]),
        ("utt-b", ("",), [[-5.0, -3.0]]),
    ]


def test_srilm_scores_are_converted_to_nats(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.gz").write_bytes(gzip.compress(b"-10.5 -3 2 so it\n"))
    (folder / "a.nbest").write_text("-10.5 -3 3 <s> so </s>\n-11 -2 0\n")
    nbest = read_nbest(folder)
    assert [(utterance.id, utterance.texts) for utterance in nbest.utterances] == [("a", ("so", "")), ("b", ("so it",))]
    assert nbest.utterances[0].scores == pytest.approx(math.log(10) * np.array([[-10.5, -3], [-11, -2]]))


@pytest.mark.parametrize(
    ("file", "utterance"),
    [
        ("sw2001.A.0001.nbest.gz", "sw2001.A.0001"),
        ("sw2001.A.0001.score", "sw2001.A.0001"),
        ("sw2001-A_0001", "sw2001-A_0001"),
        ("a.1.wav.nbest.score.gz", "a.1"),
        ("a.wav_cep", "a"),
        ("a.wv1", "a"),
        ("a.b.plp.lat", "a.b"),
        ("a.txt", "a.txt"),
        (".score.gz", ".score.gz"),
    ],
)
def test_srilm_files_are_named_after_utterances(file: str, utterance: str, tmp_path: Path) -> None:
    content = b"-1 -2 1 a\n"
    (tmp_path / file).write_bytes(gzip.compress(content) if file.endswith(".gz") else content)
    (read,) = read_nbest(tmp_path / file).utterances
    assert read.id == utterance


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    for name in ("sw1.A.1.nbest", "sw1.B.1.nbest"):
        (tmp_path / name).write_text("-1 -2 1 a\n")
    for name in (".DS_Store", "._sw1.A.1.nbest", "Thumbs.db", "desktop.ini"):
        (tmp_path / name).write_bytes(b"\x00\x00\x00\x01Bud1\xff")
    (tmp_path / "empty").mkdir()
    assert [utterance.id for utterance in read_nbest(tmp_path).utterances] == ["sw1.A.1", "sw1.B.1"]
    (tmp_path / "sw1.C.1.Z").write_bytes(b"\x1f\x9d\x90")
    with pytest.raises(UserError, match=r"sw1.C.1.Z: expected a plain file or a .gz file, got a .Z file; unpack it"):
        read_nbest(tmp_path)
    (tmp_path / "sw1.C.1.Z").rename(tmp_path / "sw1.C.1.gz")
    with pytest.raises(UserError, match=r"sw1.C.1.gz: cannot be read \(Not a gzipped file"):
        read_nbest(tmp_path)


def test_nemo_manifests_have_beams(tmp_path: Path) -> None:
    row = {"audio_filepath": "a/1.wav", "duration": 2.5, "text": "so is it", "pred_text": "so it is"}
    row |= {"beams": [["so it is", -1.5], ["so", -2]], "timestamps_word": [{"word": "so"}]}
    files.write_rows(tmp_path / "out.json", [row, {"audio_filepath": "b", "beams": [["", 0.0]], "text": ""}])
    first, second = read_nbest(tmp_path / "out.json").utterances
    assert (first.id, first.texts, first.reference) == ("a/1.wav", ("so it is", "so"), "so is it")
    assert first.scores.tolist() == [[-1.5], [-2.0]]
    assert first.columns == {"audio_filepath": "a/1.wav", "duration": 2.5, "pred_text": "so it is"}
    assert (second.id, second.texts) == ("b", ("",))
    for invalid in ({"beams": [["so"]]}, {"beams": "so"}, {"audio_filepath": None}, {"beams": None}):
        files.write_rows(tmp_path / "out.json", [{**row, **invalid}])
        with pytest.raises(UserError, match="line 1: expected audio_filepath and beams, a list of"):
            read_nbest(tmp_path / "out.json")
    for beams, message in (
        ([["so", "-1"]], "score: expected a number from -1e9 to 1e9"),
        ([[1, -1]], "expected an object with text"),
        ([], "an empty list"),
    ):
        files.write_rows(tmp_path / "out.json", [{**row, "beams": beams}])
        with pytest.raises(UserError, match=message):
            read_nbest(tmp_path / "out.json")


def with_fields(**fields: Any) -> Callable[[Path], Path]:
    """Return a function that writes a file whose second line is the first row with changed fields."""

    def write(folder: Path) -> Path:
        files.write_rows(folder / "x.jsonl", [ROWS[1], {**ROWS[0], **fields}])
        return folder / "x.jsonl"

    return write


def text_file(content: str, name: str = "x") -> Callable[[Path], Path]:

    def write(folder: Path) -> Path:
        (folder / name).write_text(content)
        return folder / name

    return write


FINITE = "lm: expected a number from -1e9 to 1e9 (log probability in nats)"


def hypothesis(**fields: Any) -> list[dict[str, Any]]:
    return [{"text": "so", "acoustic": -1.0, "lm": -2.0, **fields}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            with_fields(hypotheses=[]),
            "x.jsonl line 2: hypotheses: expected a list of at least one object, got an empty list",
        ),
        (with_fields(hypotheses=["so"]), "line 2 hypothesis 1: expected an object with text and scores, got 'so'"),
        (with_fields(hypotheses=hypothesis(lm="-2")), f"line 2 hypothesis 1: {FINITE}, got '-2'"),
        (with_fields(hypotheses=hypothesis(lm=-1e300)), f"line 2 hypothesis 1: {FINITE}, got -1e+300"),
        (with_fields(hypotheses=hypothesis(lm=math.nan)), f"line 2 hypothesis 1: {FINITE}, got None"),
        (with_fields(hypotheses=hypothesis(lm=True)), f"{FINITE}, got True"),
        (
            with_fields(hypotheses=hypothesis(am=-1.0)),
            "the same names as in the first hypothesis; the names differ in am",
        ),
        (with_fields(id=None), "line 2: expected an object with id and hypotheses"),
        (with_fields(id="7"), "x.jsonl: utterance '7' occurs twice"),
        (
            with_fields(reference=None),
            "x.jsonl: utterance a1: expected a reference; either all or no utterances have one",
        ),
        (with_fields(reference=3), "line 2: reference: expected a text, got 3"),
        (with_fields(speaker=["ann"]), "line 2: speaker: expected a text or a number, got ['ann']"),
        (text_file('{"id": 1,\n'), "x line 1: not valid JSON"),
        (text_file(""), "x: expected at least one hypothesis, got an empty file"),
        (
            text_file("-1 -2 3 a b c\n-1 b 1 a\n"),
            "x line 2: expected a number from -1e9 to 1e9, got 'b'; a line is ACOUSTIC LM",
        ),
        (
            text_file("a b\n"),
            "x line 1: expected ACOUSTIC LM WORDS-COUNT WORD ..., got 'a b'; lists are in the format of JSON",
        ),
        (lambda folder: folder / "nowhere", "nowhere: there is no such file or folder"),
        (
            lambda folder: kaldi_folder(folder / "k", words="a 1 2\n"),
            "k/words line 1: expected a hypothesis named UTTERANCE-NUMBER, got 'a'",
        ),
        (
            lambda folder: kaldi_folder(folder / "k", words="a-1 17 2\n"),
            "k/words: expected words, got only numbers; map word ids",
        ),
        (
            lambda folder: kaldi_folder(folder / "k", words="a-1 b\na-2 c\n", lm_cost="a-1 2\n"),
            "k/words line 2: a-2 has no lm cost; every hypothesis must have one",
        ),
        (
            lambda folder: kaldi_folder(folder / "k", words="a-1 b\n", ac_cost="a-1 2 3\n"),
            "k/ac_cost line 1: expected a number from -1e9 to 1e9, got '2 3'; a line is UTTERANCE-NUMBER COST",
        ),
    ],
)
def test_errors_are_one_line_with_file_and_line(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_nbest(make(tmp_path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(tmp_path))


def test_lists_without_utterances_are_an_error() -> None:
    with pytest.raises(UserError, match="utterances: expected at least one"):
        read_nbest([])


def test_references_and_columns_are_read_from_files(tmp_path: Path) -> None:
    nbest = read_nbest(ROWS)
    (tmp_path / "text").write_text("7\na1 so was it\nb1 other\n")
    assert not read_nbest([{**row, "reference": None} for row in ROWS]).has_references
    with_new_references = with_references(nbest, tmp_path / "text")
    assert [utterance.reference for utterance in with_new_references.utterances] == ["so was it", ""]
    assert with_new_references.has_references
    (tmp_path / "spk.tsv").write_text("utt\tspeaker\trole\na1\tbob\tx\n7\tcy\ty\n")
    with_new_columns = with_columns(nbest, tmp_path / "spk.tsv")
    assert with_new_columns.utterances[0].columns == {"speaker": "bob", "role": "x", "hour": 12.5}
    (tmp_path / "text").write_text("a1 so\na1 so\n")
    with pytest.raises(UserError, match="text line 2: a1 occurs twice"):
        with_references(nbest, tmp_path / "text")
    (tmp_path / "text").write_text("a1 so\n")
    with pytest.raises(UserError, match="no reference for 7"):
        with_references(nbest, tmp_path / "text")
    (tmp_path / "spk.tsv").write_text("utt\tspeaker\na1\tbob\n")
    with pytest.raises(UserError, match=r"no row for 7; the first column, utt,"):
        with_columns(nbest, tmp_path / "spk.tsv")
