"""Tables and classifications in the terminal."""

import numpy as np
import pytest

from factorcell.commands.cli import terminal
from factorcell.commands.evaluation import show_classification
from factorcell.evaluation.bayes_rule import Classification


@pytest.mark.parametrize(
    ("names", "expected"), [(("5", "1", "10"), ["1", "5", "10"]), (("Oslo", "Bergen", "A"), ["Oslo", "Bergen", "A"])]
)
def test_classified_values_are_in_natural_order(
    names: tuple[str, ...], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    truth = np.array([0, 0, 0, 1, 1, 2])
    posterior = np.log(np.eye(3)[[0, 0, 1, 1, 1, 0]] * 0.8 + 0.1)
    result = Classification(names, posterior, truth)
    show_classification(result, result.metrics(), verbose=True)
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    counts = dict(zip(names, ("3", "2", "1"), strict=True))
    assert [line for line in shown if line[0] in names] == [[name, counts[name]] for name in expected]


def test_a_zero_has_no_minus_sign(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_table([{"nats": -0.0, "auc": -1e-9, "gain": -1e-9, "least": -0.5}], ["nats", "auc", "gain", "least"])
    assert capsys.readouterr().out.split()[4:] == ["0.00", "0.0000", "+0.0%", "-0.50"]


def test_nan_is_printed_as_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_table(
        [{"value": "Oslo", "recall": float("nan"), "f1": 0.5}, {"value": "Nice", "recall": 1.0}], ["recall", "f1"]
    )
    assert capsys.readouterr().out.split() == ["recall", "f1", "-", "0.5000", "1.0000", "-"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (0.1, "0.10"),
        (0.00004, "4.0e-05"),
        (2e-300, "2.0e-300"),
        (1e-310, "<1e-300"),
        (0.0, "<1e-300"),
    ],
)
def test_probabilities_have_two_significant_digits(value: float, text: str) -> None:
    assert terminal.format_probability(value) == text
