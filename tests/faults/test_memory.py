"""The estimate of the memory of a training is near its actual peak."""

import subprocess
import sys

import pytest

# Prints the peak memory without that of the libraries, relative to the estimate.
MEASUREMENT = """
import pathlib, re, sys, tempfile, json
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.nn import sizes
from factorcell.runs.run import Run
from factorcell.training import trainer as trainer_module
from factorcell.training.trainer import train
trainer_module.SAVE_SECONDS = 0.0
model = json.loads(sys.argv[1])
words = [f"w{i}" for i in range(8000)]
rows = [{"text": " ".join(words[(17 * i + j) % 8000] for j in range(40)), "city": f"c{i % 5}"} for i in range(400)]
training = {"epochs": 0.5, "batch_tokens": 4000, "evaluations": 1, "threads": 1, "device": "cpu"}
config = Config.of(context=("city",), min_count=1, **training, **model)
small = Config.of(context=("city",), min_count=1, **training).with_options(batch_tokens=100)
def measure(config, rows):
    corpus = prepare(rows, config)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(folder + "/run", config, corpus.tokenizer, corpus.schema)
        for _ in train(run, corpus, corpus.select(range(3))):
            pass
    peak = re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())  # ru_maxrss counts the parent
    return int(peak[1]) << 10, run, corpus
before, _, _ = measure(small, rows[:3])
after, run, corpus = measure(config, rows)
size = int(corpus.offsets[-1]), len(corpus)
print((after - before) / sizes.step_bytes(config, len(run.tokenizer), run.schema, *size))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "model",
    [
        '{"hidden_size": 600, "embedding_size": 300}',
        '{"hidden_size": 400, "layers": 3, "rank": 60, "context_size": 40}',
        '{"hidden_size": 1000, "embedding_size": 100, "cell": "lstm", "adapt": [], "output_bias": []}',
    ],
)
def test_the_memory_of_a_training_is_near_its_estimate(model: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEASUREMENT, model], capture_output=True, text=True, check=True)
    assert 1 / 3 < float(done.stdout) < 1.2
