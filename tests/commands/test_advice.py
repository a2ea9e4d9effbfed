"""The sentences of `factorcell advise`."""

from pathlib import Path

from factorcell.commands.advice import advice_text, train_command
from factorcell.config import Config


def test_advice_names_the_options_to_use() -> None:
    """Names that a shell would split are quoted."""
    texts = [advice_text({"advice": advice, "column": "my city"}) for advice in ("use", "softmax bias", "leave out")]
    assert texts == ["use (--context 'my city')", "softmax bias (--context 'my city')", "leave out"]
    assert advice_text({"advice": "use", "column": "my city"}, is_user=True) == "use (--user 'my city')"


def test_the_command_has_all_columns_that_are_not_left_out() -> None:
    config = Config.of(text="my text", context=("city", "nights:number", "lon:longitude"), user="who")
    columns = ("city", "nights", "lon", "who")

    def command(*advice: str) -> str:
        rows = [{"column": name, "advice": text} for name, text in zip(columns, advice, strict=True)]
        return train_command(Path("a b.csv"), config, rows)

    start = "factorcell train 'a b.csv' --text 'my text'"
    assert command(*["leave out"] * 4) == ""
    assert command("use", *["softmax bias"] * 3) == (
        f"{start} --context city --context nights:number --context lon:longitude --user who --out RUN"
    )
    assert command("leave out", "softmax bias", "leave out", "leave out") == (
        f"{start} --context nights:number --model softmaxbias --out RUN"
    )
