"""Several processes train as one: the same sums, the same weights, one voice."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from factorcell import files
from factorcell.config import UserError
from factorcell.data.context import Context
from factorcell.data.corpus import Batch
from factorcell.evaluation import text_figures
from factorcell.model import devices
from factorcell.model.output import Proposal
from factorcell.model.run import facts
from factorcell.training import distributed
from factorcell.training.distributed import World
from tests import processes, synthetic
from tests.small import ROWS, make_run

TIMES = ("seconds", "tokens_per_second")


COUNTS = [2, pytest.param(3, marks=pytest.mark.slow)]  # processes that train together
CASES = {
    2: ("trainings", "gather", "order", "command", "evaluate", "stopped", "resumed", "poisoned"),
    3: ("trainings", "gather"),
}


class Worlds(dict[int, Path]):
    """The folders of all cases, by the number of processes, made when asked for; 1 is what one process does."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def __missing__(self, count: int) -> Path:
        folder = self[count] = self.base / str(count)
        folder.mkdir()
        files.write_rows(folder / "table.jsonl", processes.table())
        if count > 1:
            processes.start(self.base, [f"{count}/{name}" for name in CASES[count]])
            return folder
        for name in processes.TRAININGS:
            (folder / "trainings" / name).mkdir(parents=True)
            processes.weights(folder / "trainings" / name, World())
        return folder


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """The folders of all cases."""
    return Worlds(tmp_path_factory.mktemp("worlds"))


@pytest.mark.parametrize("name", processes.TRAININGS)
@pytest.mark.parametrize("count", COUNTS)
def test_several_processes_learn_what_one_learns(worlds: Worlds, count: int, name: str) -> None:
    one, many = (worlds[number] / "trainings" / name for number in (1, count))
    [alone] = files.read_rows(one / "rows-0")
    assert 1 in alone["seen"]  # a text that only one process can have
    assert any(texts > count and texts % count for texts in alone["seen"])
    expected, _ = files.load_tensors(one / "weights-0")
    tensors = [files.load_tensors(many / f"weights-{rank}")[0] for rank in range(count)]
    rows = [files.read_rows(many / f"rows-{rank}")[0] for rank in range(count)]
    for parameter, weight in expected.items():
        torch.testing.assert_close(tensors[0][parameter], weight, rtol=1e-6, atol=1e-6)
        assert all(torch.equal(tensors[0][parameter], other[parameter]) for other in tensors)
    assert all(row == rows[0] for row in rows)
    assert rows[0].keys() == alone.keys()
    for key in ("nats", "perplexity", "perplexity_known"):
        assert rows[0][key] == pytest.approx(alone[key], rel=1e-6)


@pytest.mark.parametrize("count", COUNTS)
def test_values_are_gathered_in_the_order_of_ranks(worlds: Worlds, count: int) -> None:
    for rank in range(count):
        tensors, _ = files.load_tensors(worlds[count] / "gather" / f"tensors-{rank}")
        assert tensors["sum"].tolist() == [sum(number + other for other in range(count)) for number in range(3)]
        expected = torch.cat([torch.arange(other * 2).reshape(-1, 2) for other in range(count)])
        assert torch.equal(tensors["gathered"], expected)
        assert tensors["nothing"].tolist() == []
        assert tensors["first"].tolist() == [[(count - 1) / 2] * 2] * 2
        assert tensors["second"].tolist() == [count - 1]


@pytest.mark.parametrize("count", COUNTS)
def test_averaged_rows_are_the_mean_of_dense_tables(worlds: Worlds, count: int) -> None:
    given = [processes.sparse_rows(rank, count) for rank in range(count)]
    found = [files.load_tensors(worlds[count] / "gather" / f"tensors-{rank}")[0] for rank in range(count)]
    for number in range(len(given[0])):
        dense = torch.zeros(40, 5, dtype=torch.float64)
        for part in given:
            dense.index_add_(0, part[number][0], part[number][1].double() / count)
        rows = sorted({row for part in given for row in part[number][0].tolist()})
        for tensors in found:
            assert tensors[f"indices-{number}"].tolist() == rows
            torch.testing.assert_close(tensors[f"values-{number}"].double(), dense[rows], rtol=1e-5, atol=1e-5)
            assert torch.equal(tensors[f"values-{number}"], found[0][f"values-{number}"])


def test_the_first_process_goes_ahead(worlds: Worlds) -> None:
    for name in ("well", "badly"):
        assert [row["rank"] for row in files.read_rows(worlds[2] / "order" / name)] == [0, 1]


def test_several_processes_write_what_one_process_writes(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    processes.case_command(worlds[1] / "command")
    alone, first, second = (
        files.read_json(folder / f"command-{rank}.json")
        for folder, rank in ((worlds[1], 0), (worlds[2], 0), (worlds[2], 1))
    )
    assert (alone["code"], first["code"], second["code"]) == (0, 0, 0)
    assert "38 texts, " in first["said"]
    assert "development perplexity" in first["said"].splitlines()[-1]
    assert second["said"] == ""
    one, two = worlds[1] / "command", worlds[2] / "command"
    assert {file.name for file in one.iterdir()} == {file.name for file in two.iterdir()}
    for name in ("config.json", "schema.json", "vocabulary.txt"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    own, shared = facts(one), facts(two)
    assert own.pop("context")["gain"] == pytest.approx(shared.pop("context")["gain"], abs=1e-4)
    key = own["development_key"]
    assert own == shared
    costs = [text_figures.read(folder, key)["perplexity"].above for folder in (one, two)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-4)
    ours, theirs = (files.read_rows(folder / "log.jsonl") for folder in (one, two))
    assert len(ours) > 3
    for a, b in zip(ours, theirs, strict=True):
        assert (a.keys(), a["split"]) == (b.keys(), b["split"])
        assert all(a[key] == pytest.approx(b[key], rel=1e-4) for key in a if key not in (*TIMES, "split"))


def test_a_loss_that_is_not_finite_in_one_process_ends_all(worlds: Worlds) -> None:
    for rank in range(2):
        row = files.read_json(worlds[2] / f"poisoned-{rank}.json")
        assert row["code"] == 2
        last = row["said"].splitlines()[-1]
        assert last.startswith("factorcell: the loss is not finite at step ")
        assert f", row {processes.POISONED + 1} of the training data; " in last
    assert (worlds[2] / "poisoned" / "checkpoint.safetensors").exists()


def test_a_stop_of_one_process_stops_all_after_the_same_step(worlds: Worlds) -> None:
    ends = [files.read_json(worlds[2] / f"stopped-{rank}.json") for rank in range(2)]
    assert [end["code"] for end in ends] == [130, 130]
    assert "stopped at step 2 of " in ends[0]["said"]
    assert f"saved in {worlds[2] / 'stopped'}; the same command with --resume goes on from there" in ends[0]["said"]
    assert ends[1]["said"] == ""
    assert [files.read_json(worlds[2] / f"resumed-{rank}.json")["code"] for rank in range(2)] == [0, 0]
    assert timeless(worlds[2] / "stopped") == timeless(worlds[2] / "command")
    ours, theirs = (files.load_tensors(worlds[2] / name / "weights.safetensors")[0] for name in ("stopped", "command"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


@pytest.mark.slow
def test_a_stop_in_an_evaluation_does_not_wait_for_other_processes(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    files.write_rows(tmp_path / "2" / "table.jsonl", processes.table())
    processes.start(tmp_path, ["2/dropped"])
    ends = [files.read_json(tmp_path / "2" / f"dropped-{rank}.json") for rank in range(2)]
    assert [end["code"] for end in ends] == [130, 130]
    assert "stopped at step" in ends[0]["said"]
    assert (tmp_path / "2" / "dropped" / "checkpoint.safetensors").exists()


def test_other_commands_refuse_several_processes(worlds: Worlds) -> None:
    for rank in range(2):
        row = files.read_json(worlds[2] / f"evaluate-{rank}.json")
        assert row["code"] == 2
        assert row["said"] == "factorcell: only `train` runs in 2 processes; start the other verbs without torchrun\n"


@given(st.integers(1, 9), st.integers(1, 5))
def test_every_text_is_in_the_share_of_one_process(texts: int, size: int) -> None:
    lengths = torch.randint(1, 7, (texts,))
    tokens = torch.arange(texts * 7).reshape(texts, 7)[:, : int(lengths.max()) + 1]
    context = Context(torch.arange(texts)[:, None], torch.arange(texts * 2.0).reshape(-1, 2))
    batch = Batch(tokens, lengths, context, torch.arange(texts) + 100)
    shares = [World(rank, size).share(batch) for rank in range(size)]
    taken = [share.rows.tolist() for share, factor in shares if factor]
    assert sorted(itertools.chain(*taken)) == batch.rows.tolist()
    assert max(map(len, taken)) - min(map(len, taken)) <= 1
    assert len(taken) == min(texts, size)
    assert {factor for _, factor in shares} <= {0, size}
    for share, factor in shares:
        assert len(share.rows) > 0
        assert factor or share.rows.tolist() == [100]
        where = share.rows - 100
        assert torch.equal(share.tokens, tokens[where, : share.tokens.shape[1]])
        assert share.tokens.shape[1] == int(share.lengths.max()) + 1
        assert torch.equal(share.lengths, lengths[where])
        assert torch.equal(share.context.categories[:, 0], where)
        assert torch.equal(share.context.numbers, context.numbers[where])


@pytest.mark.parametrize("adapt", [(), ("concat", "factor")])
@pytest.mark.parametrize("bias", [(), ("one_hot",), ("low_rank", "one_hot")])
@pytest.mark.parametrize("loss", ["full", "sampled"])
def test_every_batch_uses_the_same_parameters(
    adapt: tuple[str, ...], bias: tuple[str, ...], loss: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", adapt=adapt, output_bias=bias)
    rows = [*ROWS, {"text": "", "city": None, "stars": None, "lat": None, "lon": None}]
    corpus = run.prepare(rows, unknown="expected")
    samples = Proposal(torch.ones(len(run.tokenizer)), 3).draw() if loss == "sampled" else None
    used = []
    for some in (np.arange(10), np.array([3]), np.array([10])):
        run.model.zero_grad()
        nats = run.model.sampled(corpus.batch(some), samples) if samples else run.model(corpus.batch(some))
        (nats.sum() * 0).backward()
        used.append([name for name, parameter in run.model.named_parameters() if parameter.grad is not None])
    assert used[0] == used[1] == used[2]
    if adapt or bias != ("one_hot",):
        assert len(used[0]) == len(list(run.model.parameters()))


def test_a_process_finds_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert devices.find_device("auto") == devices.find_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match=r"^device is 'cuda', but PyTorch finds no GPU here; choose from auto, cpu$"):
        devices.find_device("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices.find_device("auto") == devices.find_device("cuda") == torch.device("cuda", 0)
    assert devices.find_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert devices.find_device("auto") == torch.device("cuda", 1)
    assert World(device=torch.device("cuda", 1)).generators == [torch.device("cuda", 1)]
    assert World().generators == []
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="process 3 of this machine has no GPU, there are 2"):
        devices.find_device("cuda")


def test_rank_and_size_come_from_the_environment_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert distributed.place() == (0, 1)
    assert not distributed.restarted()
    with distributed.join("cpu") as world:
        assert world == World(0, 1, torch.device("cpu"))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not distributed.restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert distributed.restarted()
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = "WORLD_SIZE is 2, but RANK, MASTER_ADDR, MASTER_PORT not set; start the processes with torchrun"
    with pytest.raises(UserError, match=message), distributed.join("cpu"):
        pass


@pytest.mark.parametrize(
    ("rank", "size", "error", "waits"),
    [
        (0, 2, KeyboardInterrupt, False),
        (0, 1, UserError, False),
        (0, 1, RuntimeError, False),
        (0, 2, UserError, False),
        (0, 2, RuntimeError, True),
        (1, 2, UserError, True),
        (1, 2, RuntimeError, True),
    ],
)
def test_only_the_first_process_reports_a_user_error_immediately(
    rank: int, size: int, error: type[BaseException], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(size))
    with pytest.raises(error), distributed.one_voice():
        raise error
    assert bool(waited) == waits


def torchrun(folder: Path, table: Path, *more: str) -> subprocess.Popen[bytes]:
    """Two processes of `factorcell train` under torchrun, which starts them anew when one has died."""
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "factorcell", "train", str(table), "--out", str(folder), *processes.OPTIONS.split()]
    how = "--epochs 4 --batch-tokens 300 --evaluations 3 --log-every 5 --save-every 10 --dropout-recurrent 0.2".split()
    with (table.parent / f"{folder.name}.errors").open("wb") as file:
        return subprocess.Popen([*starter, *more, *command, *how], stderr=file)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_processes_killed_under_torchrun_restart_and_end_the_same(tmp_path: Path) -> None:
    table, log = tmp_path / "table.jsonl", tmp_path / "killed" / "log.jsonl"
    files.write_rows(table, synthetic.two_dialects(3000, 1)[0])
    assert torchrun(tmp_path / "whole", table).wait() == 0
    whole = timeless(tmp_path / "whole")
    process = torchrun(tmp_path / "killed", table, "--max-restarts", "3")
    for victim, share in ((0, 0.3), (1, 0.6)):
        while process.poll() is None and (not log.exists() or log.read_text().count("\n") < share * len(whole)):
            time.sleep(0.01)
        assert process.poll() is None, "it ended before one was killed"
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(workers[victim]), signal.SIGKILL)
    assert process.wait() == 0
    assert (tmp_path / "killed.errors").read_text().count("exitcode: -9") == 2
    assert timeless(tmp_path / "killed") == whole
    ours, theirs = (files.load_tensors(tmp_path / name / "weights.safetensors")[0] for name in ("whole", "killed"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


def timeless(folder: Path) -> list[dict[str, Any]]:
    """The log of a run without its times."""
    return [{key: row[key] for key in row if key not in TIMES} for row in files.read_rows(folder / "log.jsonl")]
