"""The page of learned contexts shows pictures, then tables."""

from factorcell.reports.embeddings import embeddings_page
from tests.pages import Page
from tests.reports.examples import HOSTILE, contexts_results


def test_the_page_has_pictures_then_tables() -> None:
    results = contexts_results()
    content = embeddings_page(HOSTILE, results)
    page = Page(content)
    assert page.figures == {"cosine of Town 1 and Town 2": f"{1 - 2 / 99:.2f}"}
    assert page.charts == ["rating=5 against the expected context"]
    assert content.rindex("<svg") < content.index("<table")
    assert page.rows[1] == ["Town 1", ", ".join(f"Town {n} ({1 - n / 99:.2f})" for n in range(2, 12))]
    assert [remark for remark in page.texts["li"] if "--variable chooses rating or season" in remark]
    assert HOSTILE in page.texts["h1"][0]
    empty = [{**results["words"][0], "rows": []}]
    assert [text for text in Page(embeddings_page("a", {**results, "words": empty})).texts["li"] if "no word" in text]
    assert "<script" not in content
