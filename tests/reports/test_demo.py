"""The page of the demo has the results, escapes texts and loads nothing."""

import pytest

from factorcell.commands.demo import degrees, demo_page
from tests.pages import Page, requests
from tests.reports.examples import HOSTILE, demo_results


def test_the_page_has_the_results() -> None:
    content = demo_page(demo_results())
    page = Page(content)
    assert requests(page, content) == []
    assert page.figures == {
        "perplexity, factorcell": "8.43",
        "perplexity, unadapted": "10.90",
        "of held-out names assigned to their country": "71.3%",
        "accuracy of the majority class": "10.0%",
    }
    assert [image["alt"] for image in page.attributes_of("img")] == [
        f"World map of the probable places of the name {name}" for name in ("Nakamura", HOSTILE)
    ]
    assert "36° N 136° E, 111 km" in page.texts["figcaption"][0]
    assert len(page.charts) == 2
    assert page.texts["h3"][:10] == [f"Place {index}" for index in range(10)]
    assert page.texts["li"][:2] == ["Ōyashiki", HOSTILE]
    assert ["factorcell", "8.43", "0.7130", "0.1000", "231,234", "1.20"] in page.rows
    assert ["Côte d’Ivoire", "50.0%", "1,500"] in page.rows
    assert {"https://www.geonames.org/", "https://www.naturalearthdata.com/"} < {
        str(link["href"]) for link in page.attributes_of("a")
    }


@pytest.mark.parametrize(
    ("point", "text"),
    [((36.2, 138.0), "36° N 138° E"), ((-12.4, -76.6), "12° S 77° W"), ((-0.2, 0.3), "0° N 0° E")],
)
def test_points_are_formatted_in_degrees(point: tuple[float, float], text: str) -> None:
    assert degrees(*point) == text
