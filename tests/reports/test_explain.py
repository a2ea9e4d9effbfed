"""Pages of explained texts show what the rows contain."""

import re
from typing import Any

from factorcell.reports import explain
from factorcell.reports.explain import explanation
from tests.pages import Reader

Row = dict[str, Any]
BETWEEN = ["rating=5", "rating=<1>"]


def token(text: str, ratio: float, known: bool = True) -> Row:
    """One token; posteriors are anything."""
    nats = dict(zip(BETWEEN, (3.0, 3.0 + ratio), strict=True))
    posterior = dict(zip(BETWEEN, (0.75, 0.25), strict=True))
    return {"token": text, "known": known, "nats": nats, "posterior": posterior, "ratio": ratio}


def row(*tokens: Row, **more: Any) -> Row:
    """One text of words."""
    total = {name: sum(each["nats"][name] for each in tokens) for name in BETWEEN}
    text = " ".join(each["token"] for each in tokens)
    whole = {"text": text, "unit": "word", "nats": total, "posterior": tokens[-1]["posterior"]}
    return {**whole, "ratio": sum(each["ratio"] for each in tokens), "tokens": list(tokens), **more}


ROW = row(token("<b>lovely</b>", 2.25), token("room", 0.1), token("kvetch", -0.6, False), token("</s>", -1.5))


def read(page: str) -> str:
    """The text of a page that is well nested and asks nothing of the network."""
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    return reader.text


def test_tokens_have_their_nats_and_signs() -> None:
    """Exact nats in the title, a bar over or under as well as a colour, and text that is no HTML."""
    page = explanation("factorcell", [ROW])
    text = read(page)
    assert "What FactorCell hears" in text
    assert "<b>lovely</b>" in text
    spans = re.findall(r'<span style="([^"]*)" title="([^"]*)">(.*?)</span>', page)
    assert [title for _, title, _ in spans] == [
        "+2.2500 nats",
        "+0.1000 nats",
        "-0.6000 nats; not in the vocabulary",
        "-1.5000 nats",
    ]
    bars = [re.findall(r"border-(top|bottom): (\d)px", style) for style, *_ in spans]
    assert bars == [[("top", "3")], [], [("bottom", "1")], [("bottom", "2")]]
    opacities = [float(re.findall(r"rgba\([^)]*, ([\d.]+)\)", style)[0]) for style, *_ in spans]
    assert opacities[0] > opacities[3] > opacities[2] > opacities[1] > 0
    assert [content for *_, content in spans] == ["&lt;b&gt;lovely&lt;/b&gt;", "room", "<i>kvetch</i>", "¶"]
    assert "+0.25 nats in all" in text
    assert "rating=<1>" in text


def test_tokens_that_say_nothing_are_not_called_strong() -> None:
    """0.1 nats are one part in ten; a side without any says so."""
    page = explanation("run", [row(token("loud", -2.0), token("low", -0.04), token("faint", 0.02), token("</s>", 0.0))])
    strongest = page[page.index("<h2>The strongest") : page.index("<h2>What the model")]
    assert re.findall(r"<td>(\w+)</td>", strongest) == ["loud", "1"]
    assert strongest.count("No token of 0.1 nats.") == 1


def test_strongest_tokens_of_both_sides() -> None:
    """Each with what stood before it, the strongest first, as many as fit."""
    page = explanation("run", [ROW])
    first, second = re.findall(r"<h3>rating=[^<]*</h3>(.*?)</table>", page, flags=re.DOTALL)[:2]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", part) for part in (first, second)]
    assert cells[0] == [
        "&lt;b&gt;lovely&lt;/b&gt;",
        "",
        "1",
        "2.25",
        "room",
        "&lt;b&gt;lovely&lt;/b&gt;",
        "1",
        "0.10",
    ]
    assert cells[1][:4] == ["¶", "&lt;b&gt;lovely&lt;/b&gt; room kvetch", "1", "1.50"]
    many = [token(f"w{index}", index + 1.0) for index in range(20)]
    strongest = re.findall(r"<h3>rating=5</h3>(.*?)</table>", explanation("run", [row(*many)]), flags=re.DOTALL)[0]
    assert re.findall(r"<td>(w\d+)</td>", strongest) == [f"w{index}" for index in range(19, 7, -1)]
    assert explain.STRONGEST == 12
    assert "<td>… w15 w16 w17 w18</td>" in strongest


def test_words_and_an_ensemble() -> None:
    words = [{"token": "great", "ratio": 1.5, "count": 1234.5}, {"token": "rude", "ratio": -4.25, "count": 2.0}]
    text = read(explanation("run", [ROW], words, 3))
    assert "means of the log likelihoods of 3 runs" in text
    assert re.search(r"great\s*1\.50\s*1,234\.5", text)
    assert re.search(r"rude\s*4\.25\s*2\.0", text)
    alone = read(explanation("run", [ROW]))
    assert "means of" not in alone
    assert "Words raised" not in alone


def test_models_beside_each_other_and_many_contexts() -> None:
    page = explanation("run", [{**ROW, "model": "one"}, {**ROW, "model": "<two>"}])
    assert "<h3>one</h3>" in page
    assert "<h3>&lt;two&gt;</h3>" in page
    assert "1 text, read given rating=5 and rating=<1>." in read(page)
    names = ["FR", "DE", "ES"]
    three = {
        **ROW,
        "posterior": dict.fromkeys(names, 1 / 3),
        "tokens": [{**ROW["tokens"][1], "nats": dict.fromkeys(names, 2.5), "posterior": dict.fromkeys(names, 1 / 3)}],
    }
    text = read(explanation("run", [three]))
    assert "read given FR, DE and ES" in text
    assert "Token by token" not in text
    assert "2.500" in text
