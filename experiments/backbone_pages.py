"""The tables of the study of backbones from its rows.

A table without rows says that nothing was measured. A difference is followed by its 95 % interval over texts and
trainings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from aggregate import Rows, interval, number
from backbone_stages import BITS, DEFAULT, TEXT, Stage
from backbones import PLAN, SPEC
from columns import markdown
from factorcell.bootstrap import Interval
from factorcell.evaluation.text_figures import Ratios
from figures import Read

METHODS, SETS = tuple(SPEC["tables"]["methods"]), tuple(SPEC["tables"]["sets"])
BACKBONES, OTHER_BUDGETS = tuple(SPEC["tables"]["backbones"]), tuple(SPEC["tables"]["other_budgets"])
MIN_SEEDS, FIRST_SEED = 3, 0
DETERMINISTIC = "linear"  # the method that is trained with one seed
NOT_MEASURED = "Not measured.\n"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table; the backbones of the study need not all be measured."""
    return markdown(header, lines) if lines else NOT_MEASURED


def rows_of(read: Read, set_name: str, backbone: str) -> Rows:
    """Return the rows of a data set and a backbone, named by their methods.

    Further seeds of a method count when it has been trained with three, since two estimate the variance of seeds badly.
    """
    return with_counted_seeds(read("backbones").renamed({f"{set_name} {backbone} {name}": name for name in METHODS}))


def with_counted_seeds(rows: Rows) -> Rows:
    """Return the rows of the first seed, and those of further seeds of methods that have three."""
    counted = {name: len({row["seed"] for row in rows.trainings[name]}) for name in rows}
    return Rows(row for row in rows.all() if counted[row["row"]] >= MIN_SEEDS or row["seed"] == FIRST_SEED)


def figure(rows: Rows, name: str, key: str) -> str:
    """Format a figure with its interval."""
    return with_ends(interval_of(rows, name, key), ".3f")


def accuracy(rows: Rows, name: str) -> str:
    """Format the accuracy in per cent; its interval, which the variance of trainings widens, is cut at 0 and 100."""
    value = interval_of(rows, name, "accuracy")
    if value is not None and value.low is not None and value.high is not None:
        value = value._replace(low=max(0.0, value.low), high=min(1.0, value.high))
    return with_ends(value, ".1f", 100.0)


def interval_of(rows: Rows, name: str, key: str) -> Interval | None:
    """Return a figure with its interval over texts and trainings."""
    sums = rows.sums(name, key)
    ratios = Ratios.from_sums([sums]) if sums else None
    return None if ratios is None else ratios.interval(0)


def with_ends(value: Interval | None, form: str, scale: float = 1.0) -> str:
    """Format a figure and the ends of its interval; a missing figure gives an empty string."""
    if value is None:
        return ""
    ends = "" if value.low is None else f" [{number(value.low, form, scale)}, {number(value.high, form, scale)}]"
    return f"{number(value.point, form, scale)}{ends}"


def difference(rows: Rows, name: str, key: str, base: str, form: str = ".3f", scale: float = 1.0) -> str:
    """Format the difference from the method `base`."""
    return interval(difference_from(rows, name, key, base), form, scale)


def difference_from(rows: Rows, name: str, key: str, base: str) -> Interval | None:
    """Return the difference from the method `base`, of the seeds that both have."""
    if name == base or base not in rows or name not in rows:
        return None
    return with_common_seeds(rows, name, base).difference(name, key, base)


def with_common_seeds(rows: Rows, name: str, base: str) -> Rows:
    """Return the rows of the seeds that two methods have, if at least three, else of the first seed."""
    seeds = [{row["seed"] for row in rows.trainings[method]} for method in (name, base) if method != DETERMINISTIC]
    common = set.intersection(*seeds)
    common = common if len(common) >= MIN_SEEDS else {FIRST_SEED}
    return Rows(row for row in rows.all() if row["seed"] in common or row["row"] == DETERMINISTIC)


def best_methods(read: Read) -> str:
    """Return, for each backbone and set, the methods whose bits per byte are not significantly above the lowest."""
    lines = []
    for backbone in BACKBONES:
        cells = [lowest(rows_of(read, name, backbone)) for name in SETS]
        lines.append([backbone, *cells])
    return table(["backbone", *SETS], [line for line in lines if any(line[1:])])


def lowest(rows: Rows) -> str:
    """List the method with the lowest bits per byte, and those that are not significantly worse."""
    measured = [name for name in rows if rows.mean(name, BITS)]
    if not measured:
        return ""
    best = min(measured, key=lambda name: max(excess(rows, name, other) for other in measured))
    others = {name: difference_from(rows, name, BITS, best) for name in METHODS}
    equals = [name for name, interval in others.items() if interval and (interval.low is None or interval.low <= 0)]
    return ", ".join(f"`{name}`" for name in (best, *equals))


def excess(rows: Rows, name: str, base: str) -> float:
    """Return the difference of the mean bits per byte of two methods, of the seeds that both have."""
    trainings = with_common_seeds(rows, name, base).trainings
    return fmean(row[BITS] for row in trainings[name]) - fmean(row[BITS] for row in trainings[base])


def runs(read: Read) -> str:
    """Return what was trained where: tokens, seeds, machine, device and minutes of each backbone."""
    lines = []
    for name in (*BACKBONES, *OTHER_BUDGETS):
        rows = [row for row in read("backbones").all() if row["row"].split()[1] == name]
        trained = [row for row in rows if row.get("minutes")]
        if trained:
            minutes = sum(row["minutes"] for row in trained)
            machines = ", ".join(sorted({f"{row['machine']} ({row['device']})" for row in trained}))
            tokens = ", ".join(f"{count:,}" for count in sorted({row["tokens"] for row in trained}))
            lines.append([name, f"{len(trained)}", tokens, f"{minutes:.0f}", machines])
    return table(["backbone", "trainings", "tokens of each", "minutes of all", "machine"], lines)


def staged_rows(read: Read) -> Iterator[tuple[str, Stage, Rows]]:
    """Yield the data set, the stage and the rows, named by their methods, with the best rate on development texts."""
    finished = {(row["row"], row["seed"]): row for row in read("backbones").all() if "processor_seconds" in row}
    for stage_name, stage in PLAN.stages.items():
        for set_name in stage.sets:
            rates = {method: PLAN.chosen_rate(set_name, method, finished) for method in PLAN.methods}
            names = {f"{set_name} {stage_name} {method} {rate:g}": method for method, rate in rates.items()}
            yield set_name, stage, with_counted_seeds(read("backbones").renamed(names))


def stages(read: Read) -> str:
    """Return a table with a line for each set, stage and method that is not a candidate."""
    lines = []
    for set_name, stage, rows in staged_rows(read):
        for method in (name for name, each in PLAN.methods.items() if name in rows and not each.is_candidate):
            cells = [
                figure(rows, method, BITS),
                difference(rows, method, BITS, TEXT),
                difference(rows, method, f"cold_{BITS}", TEXT),
                difference(rows, method, f"pairs_{BITS}", TEXT),
                accuracy(rows, method),
                f"{fmean(row['processor_seconds'] for row in rows.trainings[method]) / 60:.0f}",
            ]
            lines.append([set_name, f"{stage.tokens:,}", f"{len(rows.trainings[method])}", f"`{method}`", *cells])
    differences = ["minus `text`", "new values, minus `text`", "new pairs, minus `text`"]
    head = ["data set", "tokens", "seeds", "method", "bits per byte", *differences, "accuracy, %", "minutes"]
    return table(head, lines)


def candidates(read: Read) -> str:
    """Return a table of the development bits per byte of the candidates minus those of the default."""
    names = [name for name, method in PLAN.methods.items() if method.is_candidate]
    lines = []
    for set_name, stage, rows in staged_rows(read):
        cells = [difference(rows, name, f"dev_{BITS}", DEFAULT) for name in names]
        lines.append([set_name, f"{stage.tokens:,}", *cells])
    return table(["data set", "tokens", *names], [line for line in lines if any(line[2:])])


TABLES: Mapping[str, Callable[[Read], str]] = {
    "best methods": best_methods,
    "stages": stages,
    "candidates": candidates,
    "machines": runs,
}
