"""The sentences of `factorcell advise`."""

from factorcell.commands.advice import advice_text


def test_advice_names_the_options_to_use() -> None:
    """Names that a shell would split are quoted."""
    texts = [advice_text({"advice": advice, "column": "my city"}) for advice in ("use", "softmax bias", "leave out")]
    assert texts == ["use (--context 'my city')", "softmax bias (--context 'my city' --model softmaxbias)", "leave out"]
    assert advice_text({"advice": "use", "column": "my city"}, is_user=True) == "use (--user 'my city')"
