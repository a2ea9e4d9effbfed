"""Speakers of oral arguments, each of whose texts is judged before it is learned."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import corpora
import study
import thesis_speakers
from factorcell.completion.online import Learner, LearningRule
from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.model.run import Run


@pytest.mark.parametrize("row", thesis_speakers.EXPERIMENT.rows)
def test_speakers_are_judged_before_they_are_learned(row: str, tmp_path: Path) -> None:
    """Whoever is not learned costs what the unknown one does; who says the same again is better known each time."""
    config = thesis_speakers.EXPERIMENT.config(study.Training(row, 0), 1)
    made = {"adapt": config.model.adapt, "output_bias": (), "context_layer": config.model.context_layer}
    data = {"user": "speaker", "context": (), "min_count": 1, "min_user_count": 1}
    sizes = {"embedding_size": 4, "hidden_size": 5, "rank": 2, "context_size": 3, "variable_size": 3}
    said = [{"text": text, "speaker": who} for who in ("amy", "ben") for text in ("yes i do", "yes i do", "no no")]
    config = Config.from_dict({"data": data, "model": {**sizes, **made}})
    corpus = prepare(said, config.data)
    run = Run.create(tmp_path / "run", config, corpus.vocabulary, corpus.schema)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    table = corpora.written(tmp_path / "said.parquet", pa.Table.from_pylist([{**one, "known": "no"} for one in said]))
    streams = thesis_speakers.streams(table)
    assert [(stream.user, len(stream.rows)) for stream in streams] == [("amy", 3), ("ben", 3)]
    still = thesis_speakers.progressive(Learner(run, LearningRule("sgd", 0.0), "group"), streams)
    unknown = run.score([{"text": one["text"], "speaker": "nobody"} for one in said], unknown="group")
    np.testing.assert_allclose(still.above, [one["nats"] for one in unknown], atol=1e-4)
    assert still.below.tolist() == [4.0, 4.0, 3.0] * 2
    learned = thesis_speakers.progressive(Learner(run, LearningRule("adagrad", 0.3), "group"), streams)
    np.testing.assert_allclose(learned.above[[0, 3]], still.above[[0, 3]], atol=1e-4)
    assert (learned.above[[1, 4]] < still.above[[1, 4]] - 0.01).all()
