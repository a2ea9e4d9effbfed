"""Count the functions of the package that four trips call: a scored row, a keystroke, a training step, a forward.

    python benchmarks/trips.py                          # this checkout
    python benchmarks/trips.py --source OTHER/src       # another checkout
    python benchmarks/trips.py --list score             # also list the functions of a trip, with their calls

`sys.setprofile` reports each code object of the package that runs: functions, lambdas, comprehensions and generators,
and the bodies of classes and modules, which an import runs. Each resumption of a generator is a call. Each trip runs in
a new process. The trip `score` begins with the first import, as a command line does; the other trips begin after a call
of the same kind. The script trains a run on a small table that it makes, with a seed, so its figures repeat.

Functions (calls; modules):

    package                            scored row        keystroke           step        forward
    before the rooms (69fe813a)  867 (4,400; 146)  128 (2,279; 25)  121 (268; 19)  170 (605; 30)
    after the rooms              796 (2,857; 138)  142 (2,506; 25)  125 (521; 19)  105 (346; 20)
    after shorter trips          735 (2,210; 112)    131 (883; 25)  117 (357; 18)   96 (334; 20)
    after fewer mechanisms        662 (2,035; 84)     94 (653; 19)  100 (293; 16)   97 (408; 21)
    after redesigned rooms        620 (2,033; 81)     85 (623; 19)   96 (279; 15)   94 (387; 20)
"""

import argparse
import collections
import contextlib
import csv
import io
import itertools
import os
import random
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).parent.parent / "src"
WORDS = "add fix remove update test docs parser cache model reader user page for in of the a new old error".split()
USERS, CITIES = ("ann", "bob", "eve"), ("Oslo", "Nice")
STEP = 5  # number of the counted step of the training
TYPED = "fix the"

Calls = collections.Counter[tuple[str, str]]  # (module, function) -> calls


@contextlib.contextmanager
def counting(calls: Calls) -> Iterator[None]:
    """Return a context manager that counts the calls of functions of the package."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and "/src/factorcell/" in code.co_filename:
            calls[code.co_filename.partition("/src/factorcell/")[2], f"{code.co_qualname}:{code.co_firstlineno}"] += 1

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def make_table(path: Path, rows: int, seed: int) -> None:
    """Write a table of short texts with a user and a city."""
    generator = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "user", "city"])
        for _ in range(rows):
            text = " ".join(generator.choices(WORDS, k=generator.randint(3, 6)))
            writer.writerow([text, generator.choice(USERS), generator.choice(CITIES)])


def score(folder: Path, calls: Calls) -> None:
    """Count one row of `factorcell score`."""
    make_table(folder / "row.csv", 1, seed=2)
    with counting(calls):
        factorcell("score", str(folder / "run"), str(folder / "row.csv"))


def keystroke(folder: Path, calls: Calls) -> None:
    """Count the completion of one more letter for a user whose texts were learned."""
    from factorcell import Run
    from factorcell.service import CompletionRequest, ServedModel, Service, open_store

    service = Service(ServedModel(Run.open(folder / "run")), open_store(f"sqlite:///{folder / 'users.db'}"))
    generator = random.Random(3)
    for _ in range(20):
        service.accept("ann", " ".join(generator.choices(WORDS, k=4)), context={"city": "Oslo"})
    for end in range(1, len(TYPED)):
        service.complete(CompletionRequest(TYPED[:end], user="ann", context={"city": "Oslo"}))
    with counting(calls):
        service.complete(CompletionRequest(TYPED, user="ann", context={"city": "Oslo"}))
    service.close()


def step(folder: Path, calls: Calls) -> None:
    """Count a step of a training."""
    from factorcell.training.trainer import Trainer

    original, numbers = Trainer.step, itertools.count(1)

    def counted(trainer: Any, *arguments: Any) -> Any:
        with counting(calls) if next(numbers) == STEP else contextlib.nullcontext():
            return original(trainer, *arguments)

    Trainer.step = counted  # type: ignore[method-assign]
    train(folder)


def forward(folder: Path, calls: Calls) -> None:
    """Count a forward of a `ContextModel` with a small Llama and two contexts."""
    import torch
    import transformers

    from factorcell.hf import ContextConfig, get_context_model

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    base = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(vocab_size=30, **sizes))
    rows = [{"city": city, "age": age} for city, age in (("Oslo", 3.0), ("Nice", 5.0))] * 3
    model = get_context_model(base, ContextConfig(["city", "age"], rank=2, min_count=1).fit(rows))
    tokens = torch.arange(3, 17).view(2, 7)
    model(tokens, context=rows[:2])
    with counting(calls):
        model(tokens, context=rows[:2])


def train(folder: Path) -> None:
    """Train a small run on a small table, as `folder/run`."""
    make_table(folder / "train.csv", 600, seed=0)
    make_table(folder / "dev.csv", 60, seed=1)
    words = ["train", str(folder / "train.csv"), "--dev", str(folder / "dev.csv"), "--out", str(folder / "run")]
    words += ["--context", "city", "--user", "user", "--min-user-count", "1", "--tokenizer", "char"]
    factorcell(*words, "--epochs", "2")


def factorcell(*words: str) -> None:
    """Run a command line in this process, without its output."""
    sys.argv[1:] = words
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            runpy.run_module("factorcell", run_name="__main__")
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(errors.getvalue()) from None


TRIPS: dict[str, Callable[[Path, Calls], None]] = {
    "step": step,
    "score": score,
    "keystroke": keystroke,
    "forward": forward,
}


def main() -> None:
    """Train the run, count each trip in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=SOURCE, help="the src folder to measure (default: this one)")
    parser.add_argument("--list", choices=TRIPS, metavar="TRIP", help="also list the functions of this trip")
    parser.add_argument("--in", nargs=2, metavar=("TRIP", "FOLDER"), dest="trip", help="count a trip in this process")
    arguments = parser.parse_args()
    if arguments.trip:
        calls: Calls = collections.Counter()
        TRIPS[arguments.trip[0]](Path(arguments.trip[1]), calls)
        print(f"| {arguments.trip[0]} | {len(calls):,} | {calls.total():,} | {len({file for file, _ in calls}):,} |")
        if arguments.list == arguments.trip[0]:
            print(*(f"{count:6} {file} {function}" for (file, function), count in calls.most_common()), sep="\n")
        return
    print("| trip | functions | calls | modules |\n|---|--:|--:|--:|", flush=True)
    environment = os.environ | {"PYTHONPATH": str(arguments.source.resolve())}
    with tempfile.TemporaryDirectory() as folder:
        for name in TRIPS:  # the first trip trains the run
            options = ["--list", arguments.list] if arguments.list else []
            command = [sys.executable, __file__, *options, "--in", name, folder]
            subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
