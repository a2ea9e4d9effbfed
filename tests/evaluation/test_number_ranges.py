"""Ranges of numbers against direct counts."""

from dataclasses import replace

import numpy as np

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.evaluation.number_ranges import MIN_TEXTS, NumberRanges


def test_a_number_with_few_values_has_a_range_for_each_and_new_numbers_that_of_the_nearest() -> None:
    years = [1900, 1904, 1912] * 40
    config = Config.of(context=("year:number",), min_count=1)
    train = prepare([{"text": "a", "year": year} for year in years], config)
    ranges = NumberRanges.of(train)
    assert [edges.tolist() for edges in ranges.edges] == [[1902.0, 1908.0]]
    assert [counts.tolist() for counts in ranges.counts] == [[40, 40, 40]]
    new_years = np.array([[1850, 1901, 1903, 1909, np.nan, 2000]], dtype=np.float32).T
    test = replace(train.select(np.arange(6)), numbers=new_years)
    extended = ranges.add_to(test)
    assert extended.categories[:, 0].tolist() == [1, 1, 2, 3, -1, 3]
    assert extended.schema.categories[0].counts == (0, 40, 40, 40)
    np.testing.assert_array_equal(extended.numbers, test.numbers)


def test_ranges_of_a_number_with_many_values_have_about_equally_many_texts() -> None:
    numbers = np.random.default_rng(0).lognormal(size=2000)
    config = Config.of(context=("price:number",), min_count=1)
    ranges = NumberRanges.of(prepare([{"text": "a", "price": number} for number in numbers.tolist()], config))
    (counts,) = ranges.counts
    assert counts.sum() == 2000
    assert len(counts) == 2000 // MIN_TEXTS
    assert abs(counts - MIN_TEXTS).max() <= 1
