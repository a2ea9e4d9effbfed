"""Check that the tests catch planted faults: one-line changes of a formula, a bound, an order or a key.

    python -m benchmarks.planted_faults [--only NUMBER ...]

Each fault is planted in a copy of the project, in which its tests must fail. The script prints the faults that the
tests do not catch, and then exits with 1. All faults take about ten minutes on two cores.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PARTS = ("src", "tests", "experiments", "benchmarks", "examples", "docs", "pyproject.toml", "README.md")
TIMEOUT = 600.0  # seconds of the tests of a fault; a test that does not end has found it


class Fault(NamedTuple):
    """A line `text` of a source file, the faulty `change`, and the tests that must fail."""

    path: str
    text: str
    change: str
    tests: str


FAULTS = [
    Fault("adapters/adapters.py", "matrix * shift.scale[:, None]", "matrix", "nn/test_adapted_linear.py"),
    Fault("adapters/adapters.py", "Shift(scale=1 + change)", "Shift(scale=1 - change)", "nn/test_equations.py"),
    Fault("adapters/adapters.py", "FULL_RATE_RANK / sizes.rank", "sizes.rank / FULL_RATE_RANK", "nn/test_steps.py"),
    Fault(
        "adapters/encoder.py",
        "word_counts.clamp(min=1).to(total.dtype).sqrt()",
        "word_counts.clamp(min=1)",
        "nn/test_encoder.py",
    ),
    Fault("nn/backbones/cells.py", "f * state.memory + (1 - f)", "f * state.memory + f", "nn/test_cells.py"),
    Fault("nn/backbones/cells.py", "z * state.hidden + (1 - z)", "(1 - z) * state.hidden + z", "nn/test_cells.py"),
    Fault("nn/output.py", "torch.log1p(1 / (ids + 1))", "torch.log1p(1 / (ids + 2))", "nn/test_output.py"),
    Fault("training/adam.py", "1 - BETA2**step) / (1 - BETA1**step)", "1 - BETA2**step)", "training/test_adam.py"),
    Fault(
        "training/schedule.py",
        "self.tokens / (self.tokens + expected)",
        "self.tokens / expected",
        "training/test_schedule.py",
    ),
    Fault(
        "data/counts.py",
        "batch.tokens.device) & batch.mask()",
        "batch.tokens.device)",
        "training/test_shared_targets.py",
    ),
    Fault("training/rules.py", "passes = PASSES_PER_PRESET[preset] * ", "passes = 2 * ", "training/test_rules.py"),
    Fault("ngram/ngram.py", "2 - 3 * y * threes / twos", "2 - 2 * y * threes / twos", "evaluation/test_ngram.py"),
    Fault("ngram/mixture.py", "suffixes)] = predecessors", "suffixes)] += predecessors", "nn/test_mixture.py"),
    Fault("evaluation/bayes_rule.py", "BINS = 15 ", "BINS = 14 ", "evaluation/test_calibration.py"),
    Fault("evaluation/classification.py", "np.cos(first_lat)[:, None] * ", "", "evaluation/test_classification.py"),
    Fault(
        "evaluation/text_figures.py",
        "hypot(end - interval.point, half_width)",
        "hypot(end, half_width)",
        "evaluation/test_statistics.py",
    ),
    Fault(
        "evaluation/text_figures.py",
        "len(values) - 1 for values",
        "len(values) for values",
        "evaluation/test_statistics.py",
    ),
    Fault("bootstrap.py", "QUANTILES = (0.025, 0.975)", "QUANTILES = (0.05, 0.95)", "test_bootstrap.py"),
    Fault("completion/online.py", "rate=self.rate", "rate=2 * self.rate", "completion/test_online.py"),
    Fault("completion/online.py", "max_norm=max_norm", "max_norm=math.inf", "completion/test_online.py"),
    Fault("completion/blend.py", "threshold=self.threshold", "threshold=0.0", "completion/test_blend.py"),
    Fault("completion/blend.py", '"own last": LESS', '"own last": MORE', "completion/test_blend.py"),
    Fault(
        "completion/typos.py",
        "before.previous_distances[:, :-2] + 1",
        "before.previous_distances[:, :-2]",
        "completion/test_typos.py",
    ),
    Fault("completion/replay.py", "selection_hash % every", "length_hash % every", "completion/test_replay.py"),
    Fault(
        "completion/search.py",
        "self.min_score = ranked[0].log_probability",
        "self.min_score = ranked[-1].log_probability",
        "completion/test_search.py",
    ),
    Fault("data/corpus.py", "shift: int = 29", "shift: int = 28", "data/test_corpus.py"),
    Fault("generation/writing.py", "tokens.shape[1] - n + 1\n", "tokens.shape[1] - n\n", "generation/test_choosing.py"),
    Fault("service/record.py", "saved.time >= cutoff", "saved.time > cutoff", "service/test_retention.py"),
    Fault("service/record.py", "len(MAGIC) + 1", "len(MAGIC)", "service/test_record.py"),
    Fault(
        "nn/language_model.py",
        "schema.categories.index(variable)].clamp(min=0)",
        "schema.categories.index(variable)]",
        "nn/test_context_inputs.py nn/test_value_names.py",
    ),
    Fault(
        "completion/popularity.py",
        "begin = bisect_right(texts, prefix)",
        "begin = max(0, bisect_right(texts, prefix) - 1)",
        "completion/test_popularity.py",
    ),
    Fault("completion/popularity.py", "age / HALF_LIFE", "age // HALF_LIFE", "completion/test_popularity.py"),
    Fault("completion/popularity.py", " | (beginnings[1:] != beginnings[:-1])", "", "completion/test_fuzzy.py"),
    Fault(
        "completion/completer.py", "log_share <= min_log_prob", "log_share >= min_log_prob", "completion/test_typos.py"
    ),
    Fault("completion/blend.py", "entered != 0 and first", "entered == 0 and first", "completion/test_blend.py"),
    Fault("completion/tuning.py", "FOLD_COUNT != fold", "FOLD_COUNT == fold", "completion/test_tuning.py"),
    Fault("completion/replay.py", 'side="right") - 1', 'side="left") - 1', "completion/test_replay.py"),
    Fault("ngram/mixture.py", "total[:, distance:] += decay", "total[:, distance:] += 1", "nn/test_mixture.py"),
    Fault("training/mixture.py", "halves != half, halves", "halves == half, halves", "training/test_mixture.py"),
    Fault(
        "training/mixture.py",
        "prior = PRIOR_TARGETS * ",
        "prior = 2 * PRIOR_TARGETS * ",
        "training/test_mixture.py",
    ),
    Fault(
        "evaluation/likelihoods.py",
        "values.repeat(len(context), 1)",
        "values.repeat_interleave(len(context), 0)",
        "evaluation/test_classification.py",
    ),
    Fault("evaluation/perplexity.py", 'side="right") - 1', 'side="left") - 1', "evaluation/test_perplexity.py"),
    Fault("runs/exporting.py", "halves.swapaxes(1, 2)", "halves", "nn/test_exporting.py"),
    Fault("service/engine.py", "(name, isinstance(value, bool), value)", "(name, value)", "service/test_engine.py"),
    Fault(
        "service/engine.py", "record.updated_at >= cutoff", "record.updated_at > cutoff", "service/test_retention.py"
    ),
]


def is_caught(fault: Fault, folder: Path) -> bool:
    """Return whether a test fails in the copy of the project in `folder` with this fault, which is then removed."""
    path = folder / "src" / "factorcell" / fault.path
    source = path.read_text(encoding="utf-8")
    if source.count(fault.text) < 1:
        raise SystemExit(f"{fault.path}: expected the text {fault.text!r}, which the source does not contain")
    path.write_text(source.replace(fault.text, fault.change, 1), encoding="utf-8")
    tests = [str(folder / "tests" / name) for name in fault.tests.split()]
    options = ["-x", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider"]
    options += ["--hypothesis-profile", "no shrinking"]  # a search for the simplest failing example takes minutes
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(source, encoding="utf-8")
    has_failed = b" failed" in result.stdout  # the exit status is 1, or 2 if a process of the tests was stopped
    if result.returncode and not has_failed:
        raise SystemExit(f"{fault.path}: the tests did not run\n{result.stdout.decode()[-2000:]}")
    return has_failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="NUMBER", help="numbers of faults, from 1 (default: all)"
    )
    numbers = parser.parse_args().only or range(1, len(FAULTS) + 1)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="factorcell-faults-") as name:
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, Path(name) / part)
        for number in numbers:
            fault = FAULTS[number - 1]
            caught = is_caught(fault, Path(name))
            missed += not caught
            print(f"{number} {'caught' if caught else 'MISSED'}: {fault.path}: {fault.change!r}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
