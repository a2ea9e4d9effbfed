"""The command that follows the advice of `factorcell advise`."""

from pathlib import Path

from factorcell.commands.evaluation import train_command
from factorcell.config import Config


def test_the_command_has_all_columns_that_are_not_left_out() -> None:
    config = Config.of(text="my text", context=("city", "nights:number", "lon:longitude"), user="who")
    specified = {"text": "my text", "context": config.data.context, "user": "who", "config": None, "min_count": 2}
    specified |= {"lowercase": True, "anonymous": False}
    columns = ("city", "nights", "lon", "who")

    def command(*advice: str) -> str:
        rows = [{"column": name, "advice": text} for name, text in zip(columns, advice, strict=True)]
        return train_command(Path("a b.csv"), config, rows, specified)

    start, end = "factorcell train 'a b.csv'", "--text 'my text' --min-count 2 --lowercase --no-anonymous --out RUN"
    assert command(*["leave out"] * 4) == ""
    assert command(*["use"] * 4) == (
        f"{start} --context city --context nights:number --context lon:longitude --user who {end}"
    )
    assert command("leave out", "use", "leave out", "leave out") == f"{start} --context nights:number {end}"
