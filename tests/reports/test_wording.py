"""Texts that pages and the terminal share: advice with the options to use."""

from factorcell.reports import wording


def test_advice_names_the_options_to_use() -> None:
    """Names that a shell would split are quoted."""
    texts = [
        wording.advice_text({"advice": advice, "column": "my city"}) for advice in ("use", "softmax bias", "leave out")
    ]
    assert texts == ["use (--context 'my city')", "softmax bias (--context 'my city' --model softmaxbias)", "leave out"]
