"""What several processes do together in the tests; `start` starts them, each case leaves files in a folder of its own.

Each process is `python processes.py FOLDER COUNT/CASE=PORT ...`; those of rank below COUNT take part in a case.
"""

import faulthandler
import io
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from factorcell import files
from factorcell.commands import main as cli
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Batch, Corpus
from factorcell.model.language_model import LanguageModel
from factorcell.model.run import Run
from factorcell.training import distributed
from factorcell.training.distributed import World
from factorcell.training.trainer import Trainer
from tests import synthetic

TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"loss": "full"},
    "sampled": {"loss": "sampled", "output_bias": ["low_rank", "one_hot", "hash"]},
    "sampled_text": {"loss": "sampled_text"},
    "unused": {"loss": "full", "adapt": [], "output_bias": ["one_hot"]},  # which needs no context vector
}
SHARED = ("trainings", "gather", "order")  # cases whose folder is there before them
LIMIT = 300  # seconds, in case they wait for each other in vain; PyTorch may have to be read from a cold disk
OPTIONS = (
    "--context dialect --min-count 1 --min-context-count 1 --hidden-size 8 --embedding-size 6 --threads 1"
    " --precision float32"  # on a busy machine each of two may find another to be the faster
)
HOW = "--epochs 1 --batch-tokens 400 --dropout-context 0 --evaluations 2 --log-every 2 --save-every 3"
POISONED = 17  # the row of which the loss is not finite


def free_port() -> int:
    """A port that nothing listens on, and below those that connections get."""
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 1000):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("localhost", port))
            return port
    raise OSError("no port is free")


def start(folder: Path, cases: list[str]) -> None:
    """Run each case, COUNT/NAME, in the first COUNT of a few processes, one case after the other; fail with them.

    Where the processes of a case meet is kept here, as torchrun keeps it: no port is chosen before somebody listens.
    """
    count = max(int(case.split("/")[0]) for case in cases)
    meetings = [TCPStore("localhost", 0, is_master=True, wait_for_workers=False) for _ in cases]
    given = [f"{case}={meeting.port}" for case, meeting in zip(cases, meetings, strict=True)]
    path = os.pathsep.join(filter(None, sys.path))
    common = {**os.environ, "PYTHONPATH": path, "MASTER_ADDR": "localhost", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    errors = folder / "errors"
    with errors.open("w") as file:
        command = [sys.executable, __file__, str(folder), *given]
        started = [subprocess.Popen(command, env={**common, "RANK": str(rank)}, stderr=file) for rank in range(count)]
        end = time.monotonic() + LIMIT
        while not any(codes := [process.poll() for process in started]) and None in codes and time.monotonic() < end:
            time.sleep(0.02)
        for process in started:  # where one has failed the others may wait for it
            process.kill()
            process.wait()
    assert codes == [0] * count, errors.read_text()


def table() -> list[dict[str, Any]]:
    """Short texts, and some so long that they fill a batch alone."""
    rows: list[dict[str, Any]] = list(synthetic.two_dialects(40, 1)[0])
    for number in range(0, 40, 8):
        rows[number] = {**rows[number], "text": " ".join(row["text"] for row in rows[number : number + 8])}
    return rows


def begin(folder: Path, loss: str, **model: Any) -> tuple[Run, Corpus, Corpus]:
    """A small FactorCell without dropout, in double precision: Adam makes much of the rounding of tiny gradients.

    There are fewer texts to evaluate on than three processes.
    """
    sizes = {"embedding_size": 6, "hidden_size": 8, "context_size": 3, "variable_size": 3, "rank": 2}
    sizes |= {"hash_size": 200, "bloom_size": 4000}
    how: dict[str, Any] = {
        "epochs": 1,
        "batch_tokens": 100,
        "evaluations": 2,
        "log_every": 1,
        "learning_rate": 1e-2,
        "clip": 0.5,
        "weight_decay": 0.1,
    }
    config = Config.of(
        **{
            "context": ["dialect"],
            "min_count": 1,
            "min_context_count": 1,
            **sizes,
            "output_bias": ["low_rank", "one_hot"],
            **model,
            **how,
            "loss": loss,
            "samples": 8,
            "device": "cpu",
        }
    )
    corpus = prepare(table(), config)
    dev = prepare(table()[:2], config, tokenizer=corpus.tokenizer, schema=corpus.schema)
    run = Run(folder, config, corpus.tokenizer, corpus.schema)
    run.model.double()
    return run, corpus, dev


def weights(folder: Path, world: World) -> None:
    """A whole training; each process leaves its weights, what it saw and what it measured."""
    run, corpus, dev = begin(folder, **TRAININGS[folder.name])
    trainer = Trainer(run, corpus, dev, world)
    seen = []
    for batch in trainer.batches():
        seen.append(len(batch.rows))
        trainer.step(batch)
    rows = [{"seen": seen, "nats": trainer.progress.nats, **trainer.evaluate()}]
    files.write_rows(folder / f"rows-{world.rank}", rows)
    files.save_tensors(folder / f"weights-{world.rank}", trainer.parameters, {})


def sparse_rows(rank: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """What process `rank` of `size` has to gather: much, little, nothing; rows named twice, by one and by several."""
    random = torch.Generator().manual_seed(rank)
    found = []
    for count in (7, 0, 3 * rank, 1 if rank == size - 1 else 0, 500):
        indices = torch.randint(0, 40, (count,), generator=random)
        found.append((indices, torch.randn(count, 5, generator=random)))
    return found


def case_trainings(folder: Path) -> None:
    """Whole trainings, one after the other."""
    with distributed.join("cpu") as world:
        for name in TRAININGS:
            (folder / name).mkdir(exist_ok=True)
            weights(folder / name, world)


def case_gather(folder: Path) -> None:
    """Sums, ragged gathers, sparse rows."""
    with distributed.join("cpu") as world:
        tensors = {
            "sum": world.sum(torch.arange(3.0) + world.rank),
            "gathered": world.gather(torch.arange(world.rank * 2).reshape(-1, 2)),
            "nothing": world.gather(torch.zeros(0, dtype=torch.long)),
        }
        for number, (indices, values) in enumerate(sparse_rows(world.rank, world.size)):
            rows, (means,) = world.average_rows(indices, [values])
            tensors |= {f"indices-{number}": rows, f"values-{number}": means}
        tensors["first"], tensors["second"] = torch.full((2, 2), float(world.rank)), torch.tensor([2.0 * world.rank])
        world.average([tensors["first"], tensors["second"]])
    files.save_tensors(folder / f"tensors-{world.rank}", tensors, {})


def case_order(folder: Path) -> None:
    """The first goes ahead, and its error does not leave the others waiting."""
    with distributed.join("cpu") as world:
        for name in ("well", "badly"):
            try:
                with world.first_goes_ahead():
                    files.append_row(folder / name, {"rank": world.rank})
                    if name == "badly":
                        raise UserError("no such file")
            except UserError:
                world.barrier()


def case_command(folder: Path) -> None:
    """`factorcell train` as it is typed; what each process says is kept."""
    _command(folder, "train", str(folder.parent / "table.jsonl"), *OPTIONS.split(), *HOW.split())


def case_poisoned(folder: Path) -> None:
    """In the process that has it, the loss of one row is not a number."""
    original = LanguageModel.forward

    def forward(self: LanguageModel, batch: Batch, *rest: Any) -> Tensor:
        nats = original(self, batch, *rest)
        return torch.where((batch.rows == POISONED)[:, None], torch.nan, nats) if self.training else nats

    LanguageModel.forward = forward  # type: ignore[method-assign, assignment]
    try:
        _command(folder, "train", str(folder.parent / "table.jsonl"), *OPTIONS.split(), *HOW.split())
    finally:
        LanguageModel.forward = original  # type: ignore[method-assign]


def case_stopped(folder: Path) -> None:
    """One process is asked to stop, and all of them stop after the same step; then they go on."""
    original = Trainer.step

    def step(self: Trainer, batch: Batch, stopping: bool = False) -> bool:
        agreed = original(self, batch, stopping)
        if self.world.rank == 1 and self.progress.step == 1:
            signal.raise_signal(signal.SIGTERM)
        return agreed

    Trainer.step = step  # type: ignore[method-assign]
    try:
        _command(folder, "train", str(folder.parent / "table.jsonl"), *OPTIONS.split(), *HOW.split())
    finally:
        Trainer.step = original  # type: ignore[method-assign]


def case_resumed(folder: Path) -> None:
    """What was stopped goes on."""
    given = [str(folder.parent / "table.jsonl"), *OPTIONS.split(), *HOW.split(), "--resume"]
    _command(folder, "train", *given, out=folder.with_name("stopped"))


def case_dropped(folder: Path) -> None:
    """Both are asked to stop in an evaluation, which the second one is slow in and the first one waits for."""
    original, rank = Trainer.evaluate, os.environ["RANK"]
    mine, other = folder.with_name(f"pid-{rank}"), folder.with_name("pid-0")
    mine.write_text(str(os.getpid()))

    def evaluate(self: Trainer) -> dict[str, Any]:
        if rank == "1":
            time.sleep(0.5)
            os.kill(int(other.read_text()), signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        return original(self)

    Trainer.evaluate = evaluate  # type: ignore[method-assign]
    try:
        _command(folder, "train", str(folder.parent / "table.jsonl"), *OPTIONS.split(), *HOW.split())
    finally:
        Trainer.evaluate = original  # type: ignore[method-assign]


def case_evaluate(folder: Path) -> None:
    """A verb that does not run in several processes."""
    _command(folder, "evaluate", str(folder), str(folder.parent / "table.jsonl"))


def _command(folder: Path, verb: str, *arguments: str, out: Path | None = None) -> None:
    """Keep exit code and messages of a command; it must not wait for a torchrun that is not there."""
    distributed.HESITATION = 0.0
    with redirect_stderr(io.StringIO()) as said:
        given = ("--out", str(out or folder)) if verb == "train" else ()
        try:
            code: object = cli.main([verb, *arguments, *given])
        except SystemExit as error:
            code = error.code
    row = {"code": code, "said": said.getvalue()}
    files.write_json(folder.with_name(f"{folder.name}-{os.environ['RANK']}.json"), row)
    print(f"{os.environ['RANK']} ended {folder.name} with {code}: {row['said']}", file=sys.stderr, flush=True)


def meet() -> None:
    """Wait for the others: a command that goes on from one before it begins when that has ended in all processes."""
    meeting = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    meeting.set(f"met {os.environ['RANK']}", "")
    meeting.wait([f"met {rank}" for rank in range(int(os.environ["WORLD_SIZE"]))])


def main(folder: str, *cases: str) -> None:
    """Run every case in a folder of its own."""
    torch.set_num_threads(1)
    np.seterr(all="raise")
    faulthandler.dump_traceback_later(LIMIT - 20, exit=True)  # where one that waits in vain does so
    for case in cases:
        print(f"{os.environ['RANK']} begins {case}", file=sys.stderr, flush=True)
        path, os.environ["MASTER_PORT"] = case.split("=")
        os.environ["WORLD_SIZE"], name = path.split("/")
        if int(os.environ["RANK"]) < int(os.environ["WORLD_SIZE"]):
            meet()
            if name in SHARED:
                (Path(folder) / path).mkdir(exist_ok=True)
            globals()[f"case_{name}"](Path(folder) / path)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
