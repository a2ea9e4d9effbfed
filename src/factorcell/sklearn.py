"""A classifier of texts with the interface of scikit-learn. Shapes: B texts, K classes."""

import shutil
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from factorcell.config import DataConfig
from factorcell.data.columns.rows import distinct_category_names, to_texts
from factorcell.data.columns.schema import UNKNOWN_VALUE
from factorcell.data.columns.values import is_missing
from factorcell.data.tables.chunks import UnknownKindError
from factorcell.data.tables.tables import is_column, open_table, to_value_list
from factorcell.errors import UserError
from factorcell.evaluation.classification import classify
from factorcell.io import lock
from factorcell.options.columns import Category
from factorcell.runs.run import CHECKPOINT, Run, delete_with
from factorcell.training.fit import fit

CLASS = "class"  # the context column of a run that contains the class
UNPICKLED_FILES = (CHECKPOINT, lock.FILE)  # files of a run folder that only a training reads
MISSING_CLASS = "y: expected a class for each text, got missing values"
MAX_SEED = 2**31 - 1

Columns = dict[str, list[Any]]


class ContextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier that trains a run, of which the class is a context variable, and applies Bayes' rule.

        ContextClassifier(minutes=1).fit(texts, labels).predict(["lovely stay"])

    It reads a list, an array or a series of texts; or a table, such as a data frame, with a text column. All other
    columns of the table are context columns.

    Args:
        text: The name of the text column of tables.
        minutes: The longest duration of the training; None sets no limit.
        preset: The number of passes, "quick", "good" or "best", as in `fit`.
        out: The run folder to write, which must be new; None uses a temporary folder.
        random_state: The seed of the training: an integer, a `numpy.random.RandomState`, or None for a random seed.
        **options: Options of the training, as in `fit`, such as `rank`; they are parameters of the estimator too, as
            for `GridSearchCV`.

    Attributes:
        classes_: The classes (K,), sorted.
        run_: The trained run, whose context column `class` contains the class.
    """

    def __init__(
        self,
        *,
        text: str = "text",
        minutes: float | None = None,
        preset: str | None = None,
        out: str | Path | None = None,
        random_state: Any = None,
        **options: Any,
    ) -> None:
        self.text, self.minutes, self.preset = text, minutes, preset
        self.out, self.random_state = out, random_state
        self._options = options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters with their values, including the options of the training that were set."""
        return {**super().get_params(deep), **self._options}

    def set_params(self, **params: Any) -> "ContextClassifier":
        """Set parameters, which may be options of the training."""
        own_names = self._get_param_names()
        self._options.update({name: value for name, value in params.items() if name not in own_names})
        super().set_params(**{name: value for name, value in params.items() if name in own_names})
        return self

    def fit(self, X: Any, y: Any) -> "ContextClassifier":  # noqa: N803  scikit-learn prescribes the name
        """Train a run on texts with classes, of which 5 % are held out to select the best weights.

        Args:
            X: The texts, or a table with a text column.
            y: The class of each text (B,).

        Returns:
            This classifier.

        Raises:
            UserError: The table or an option is not valid.
            ValueError: The classes are not valid, for example if there is only one.
        """
        columns = self._read(X)
        if CLASS in columns:
            raise UserError(f"X: the column name {CLASS!r} is reserved for the classes; rename the column")
        labels = _read_labels(y)
        check_consistent_length(columns[self.text], labels)
        check_classification_targets(labels)
        classes, indices, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if len(classes) < 2:
            raise ValueError(f"y: expected at least two classes, got only one class, {classes[0]!r}")
        names = _class_names(classes)
        table = {**columns, CLASS: [names[index] for index in indices]}
        options = self._training_options(columns, int(counts.min()))
        folder = Path(mkdtemp(prefix="factorcell-")) if self.out is None else Path(self.out)
        try:
            run = fit(table, out=folder, minutes=self.minutes, preset=self.preset, **options)
        except BaseException:
            if self.out is None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        self.classes_, self.run_ = classes, run if self.out is not None else delete_with(run, run.folder)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class given each text (B, K), with the classes in the order of `classes_`."""
        check_is_fitted(self, "run_")
        columns = self._read(X)
        columns.pop(CLASS, None)
        try:
            return classify(self.run_, columns, CLASS, values=_class_names(self.classes_)).probabilities
        except UserError as error:
            raise UserError(error.message) from None  # its remedies are arguments of `classify`

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the logarithm of `predict_proba` (B, K)."""
        with np.errstate(divide="ignore"):
            log_probs: NDArray[np.float64] = np.log(self.predict_proba(X))
        return log_probs

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the most probable class of each text (B,)."""
        indices = self.predict_proba(X).argmax(1)
        predicted: NDArray[Any] = self.classes_[indices]
        return predicted

    def _read(self, source: Any) -> Columns:
        """Return the columns of texts or of a table; a list of texts becomes the text column."""
        if getattr(source, "ndim", 1) == 2 and not hasattr(source, "columns") and source.shape[1] == 1:
            source = source[:, 0]  # an array of texts with one column
        if (texts := to_texts(source)) is not None:
            return {self.text: texts}
        try:
            table = open_table(source)
        except UnknownKindError as error:
            raise error.with_remedy_for_texts() from None
        if self.text not in table.columns:
            raise table.missing_column_error(self.text)
        chunks = list(table.chunks(table.columns))
        return {name: [value for chunk in chunks for value in chunk[name]] for name in table.columns}

    def _training_options(self, columns: Columns, smallest_count: int) -> dict[str, Any]:
        """Return the options of the training; no class is rare, because `smallest_count` texts have the rarest one."""
        options = self._options
        read_columns = {self.text, options.get("user"), options.get("time")}
        context = options.get("context", [name for name in columns if name not in read_columns])
        seed = self.random_state
        return {
            "min_context_count": min(DataConfig().min_value_count(len(columns[self.text])), smallest_count),
            **options,
            "text": self.text,
            "context": [Category(CLASS), *context],
            "seed": int(seed if isinstance(seed, Integral) else check_random_state(seed).randint(MAX_SEED)),
        }

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle, with the content of the files of the run folder instead of the run."""
        state: dict[str, Any] = dict(super().__getstate__())  # the dict of this object, which must not change
        if (run := state.pop("run_", None)) is not None:
            paths = [path for path in run.folder.iterdir() if path.is_file() and path.name not in UNPICKLED_FILES]
            state["_run_files"] = {path.name: path.read_bytes() for path in paths}
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Write the files of the run to a temporary folder and open it."""
        state = dict(state)
        contents = state.pop("_run_files", None)
        super().__setstate__(state)
        if contents is not None:
            folder = Path(mkdtemp(prefix="factorcell-"))
            for name, content in contents.items():
                (folder / name).write_bytes(content)
            self.run_ = delete_with(Run.open(folder), folder)

    def __sklearn_tags__(self) -> Any:
        """Return the tags that say that `X` has texts instead of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags


def _read_labels(y: Any) -> NDArray[Any]:
    """Return the class of each text (B,) from an array, a column or a table with one column."""
    values = y.to_numpy() if hasattr(y, "columns") else y
    if not hasattr(values, "dtype"):
        values = to_value_list(values) if is_column(values) else list(values)
        # NumPy would make a text of a missing value that is among texts.
        if any(is_missing(value) for value in values if not isinstance(value, str)):
            raise ValueError(MISSING_CLASS)
    labels: NDArray[Any] = column_or_1d(np.asarray(values))
    if labels.dtype == object and any(map(is_missing, labels)):
        raise ValueError(MISSING_CLASS)
    return labels


def _class_names(classes: NDArray[Any]) -> list[str]:
    """Return the name of each class (K,) in the run; raise a `UserError` if two classes have the same name."""
    names = distinct_category_names(classes.tolist(), "y")
    if len(names) < len(classes):
        raise UserError("y: two classes have the same name, such as '5' and '5.0'; expected different names")
    if UNKNOWN_VALUE in names:
        raise UserError(f"y: expected other class names than {UNKNOWN_VALUE}, which means any rare class")
    return names
