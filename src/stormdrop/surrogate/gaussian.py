"""A small Gaussian process over points whose columns are levels of ordered knobs.

Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, algorithm 2.1 and section 5.4.1 (the
likelihood and its gradient).

The covariance of two points is a product over columns of  f + (1 - f) M(distance / length),  where M is the Matérn-5/2
function and the distance is counted in levels and scaled to 1 over the whole column. Because of the floor f, points
that agree in the other columns remain correlated, however far apart they are in this one. Multiplied out, the product
is a sum over all subsets of columns (the ANOVA kernel), in which a subset of s of the d columns has the weight
(1 - f)^s f^(d - s). So main effects weigh most and interactions of many columns least, and the effect of a single
knob is learned from few points.

The lengths and the nugget maximise the posterior under log-normal priors. The scale maximises the likelihood in closed
form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]

# Log-normal priors of the lengths (in units of the whole column) and of the nugget (a share of the variance): the
# standard deviations of the logarithms, and the nugget's median.
_LENGTH_SPREAD = 1.0
_NUGGET, _NUGGET_SPREAD = 0.02, 1.0
_JITTER = 1e-8
# With more columns than the first number, the parameters are learned from so many pairs of points, counted per column.
_WIDE, _PAIRS = 100, 1_000_000
# Iterations of the optimiser from the priors' medians, and from the last optimum.
_FIRST_ITERATIONS, _LATER_ITERATIONS = 30, 8


@dataclass
class Prediction:
    """What the process predicts for m points.

    Attributes:
        levels: The points, shape `(m, d)`.
        mean: The expected values, shape `(m,)`.
        explained: The columns that solve (Cholesky factor) x = (covariances with the n known points), shape `(n, m)`.
        variance: The variances as shares of the process's variance, shape `(m,)`.
        unit: The standard deviation of the process, in the unit of the values.
    """

    levels: Levels
    mean: Floats
    explained: Floats
    variance: Floats
    unit: float

    @property
    def deviation(self) -> Floats:
        """The standard deviations of the noise-free values, shape `(m,)`."""
        deviation: Floats = self.unit * np.sqrt(np.maximum(self.variance, 1e-9))
        return deviation


@cache
def _blas() -> ThreadpoolController:
    """Limits the threads of linear algebra.

    Matrices of some hundred rows are fastest on one thread, because several threads mostly wait for each other. Beside
    other load, storm's search took 175 ms per evaluation with two threads, and 5 ms with one.
    """
    from scipy import linalg  # noqa: F401  only libraries that are loaded can be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _on_one_thread(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    @wraps(method)
    def limited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with _blas().limit(limits=1, user_api="blas"):
            return method(*args, **kwargs)

    return limited


class GaussianProcess:
    """A Gaussian process that is fitted to a growing set of points. Each fit starts from the last one's parameters.

    Args:
        sizes: The number of levels of each column. Columns with a single level are ignored.
        floor: The floor f of the covariance.
        length: The median of the prior of the lengths, in units of the whole column.
        large: Whether the columns have so many levels that covariances are kept by the difference of two levels. Else
            there is one for each two levels.
    """

    def __init__(self, sizes: Sequence[int], floor: float = 0.6, length: float = 0.5, *, large: bool = False) -> None:
        self._columns = [column for column, size in enumerate(sizes) if size > 1]
        self._sizes = [sizes[column] for column in self._columns]
        self._large = large
        # Per column the distances between each two levels; in large ones the distance of each level to the first one.
        scales = [np.arange(size) / (size - 1) for size in self._sizes]
        self._distances = scales if large else [np.abs(np.subtract.outer(scale, scale)) for scale in scales]
        self._floor = floor
        columns = len(self._columns)
        self._centre = np.append(np.full(columns, math.log(length)), math.log(_NUGGET))
        self._spread = np.append(np.full(columns, _LENGTH_SPREAD), _NUGGET_SPREAD)
        self._parameters = self._centre.copy()  # the logarithms of the lengths and of the nugget
        self._learned = False

    @_on_one_thread
    def fit(self, levels: Levels, values: Floats, groups: Floats, learn: bool = True) -> None:
        """Conditions the process on observed values.

        Args:
            levels: The points, shape `(n, d)`.
            values: Their values, shape `(n,)`.
            groups: How often each value was observed, shape `(n,)`. It divides the value's nugget.
            learn: Whether the lengths and the nugget are learned first.
        """
        from scipy import linalg  # imported late, here and below: it takes 70 ms, and most commands fit nothing

        self._levels = levels
        self._mean, self._unit = float(values.mean()), float(values.std()) or 1.0
        standard = (values - self._mean) / self._unit
        if learn and standard.any():  # nothing can be learned from values that are all equal
            self._learn(levels, standard, groups)
        self._tables = self._covariance_tables(self._parameters)
        covariance = self._covariance(levels, levels)
        covariance[np.diag_indices(len(values))] += math.exp(self._parameters[-1]) / groups + _JITTER
        self._factor = np.linalg.cholesky(covariance)
        self._weights = linalg.cho_solve((self._factor, True), standard)
        self._scale = math.sqrt(max(float(standard @ self._weights) / len(values), 1e-6))

    @_on_one_thread
    def predict(self, levels: Levels) -> Prediction:
        """The mean and the deviation of the noise-free values at m points.

        Args:
            levels: The points, shape `(m, d)`.
        """
        from scipy import linalg

        cross = self._covariance(levels, self._levels)
        explained = linalg.solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        mean = self._mean + self._unit * (cross @ self._weights)
        variance = 1.0 - np.einsum("ij,ij->j", explained, explained)
        return Prediction(levels, mean, explained, variance, self._unit * self._scale)

    @_on_one_thread
    def believe(self, point: Levels, predictions: Sequence[Prediction] = ()) -> None:
        """Conditions the process on one more point, as if its expected value had been observed there.

        No mean changes, but deviations do, so that a batch does not hold two points from which the same is learned.

        Args:
            point: The levels of the point, shape `(1, d)`.
            predictions: Predictions that are updated in place.
        """
        from scipy import linalg

        row = linalg.solve_triangular(self._factor, self._covariance(self._levels, point), lower=True)[:, 0]
        corner = math.sqrt(max(1.0 + math.exp(self._parameters[-1]) + _JITTER - float(row @ row), _JITTER))
        for prediction in predictions:
            explained = (self._covariance(point, prediction.levels)[0] - row @ prediction.explained) / corner
            prediction.explained = np.vstack([prediction.explained, explained])
            prediction.variance = prediction.variance - explained**2
        size = len(row)
        factor = np.zeros((size + 1, size + 1))
        factor[:size, :size], factor[size, :size], factor[size, size] = self._factor, row, corner
        self._factor, self._levels = factor, np.vstack([self._levels, point])
        self._weights = np.append(self._weights, 0.0)

    def _covariance_tables(self, parameters: Floats) -> list[Floats]:
        """Per column the factor of the covariance between each two levels."""
        tables = []
        for distances, log_length in zip(self._distances, parameters, strict=False):
            r = distances * (math.sqrt(5) / math.exp(log_length))
            tables.append(self._floor + (1 - self._floor) * (1 + r + r * r / 3) * np.exp(-r))
        return tables

    def _covariance(self, a: Levels, b: Levels) -> Floats:
        product = np.ones((len(a), len(b)))
        for column, table in zip(self._columns, self._tables, strict=True):
            if self._large:
                product *= table[np.abs(np.subtract.outer(a[:, column], b[:, column]))]
            else:
                product *= np.take(table[a[:, column]], b[:, column], axis=1)
        return product

    def _learn(self, levels: Levels, standard: Floats, groups: Floats) -> None:
        """Moves the lengths and the nugget to the maximum of their posterior, given standardised values."""
        from scipy import linalg, optimize

        most = max(2, math.isqrt(_PAIRS // max(1, len(self._columns))))
        if len(self._columns) > _WIDE and len(standard) > most:
            picked = np.linspace(0, len(standard) - 1, most).astype(np.intp)
            levels, standard, groups = levels[picked], standard[picked], groups[picked]
        n = len(standard)
        pairs = [
            np.abs(np.subtract.outer(levels[:, column], levels[:, column])).ravel()
            if self._large
            else (levels[:, column, None] * size + levels[None, :, column]).ravel()
            for column, size in zip(self._columns, self._sizes, strict=True)
        ]
        identity = np.eye(n)

        def negative_log_posterior(parameters: Floats) -> tuple[float, Floats]:
            tables = self._covariance_tables(parameters)
            covariance = np.ones(n * n)
            for pair, table in zip(pairs, tables, strict=True):
                covariance *= table.ravel()[pair]
            nugget = math.exp(parameters[-1])
            noisy = covariance.reshape(n, n) + np.diag(nugget / groups + _JITTER)
            factor = np.linalg.cholesky(noisy)
            inverse = linalg.cho_solve((factor, True), identity, check_finite=False)
            weights = inverse @ standard
            scale = float(standard @ weights) / n
            slope = inverse - np.outer(weights, weights) / scale
            weighted = slope.ravel() * covariance
            gradient = np.empty(len(parameters))
            for index, (pair, table, distances) in enumerate(zip(pairs, tables, self._distances, strict=True)):
                r = distances * (math.sqrt(5) / math.exp(parameters[index]))
                ratio = (1 - self._floor) * (r * r / 3) * (1 + r) * np.exp(-r) / table
                gradient[index] = 0.5 * np.bincount(pair, weighted, minlength=ratio.size) @ ratio.ravel()
            gradient[-1] = 0.5 * nugget * float(np.sum(np.diag(slope) / groups))
            off = (parameters - self._centre) / self._spread
            value = 0.5 * n * math.log(scale) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(off @ off)
            return value, gradient + off / self._spread

        bounds = [*[(-4.0, 4.0)] * len(self._columns), (-9.0, 1.0)]
        iterations = _LATER_ITERATIONS if self._learned else _FIRST_ITERATIONS
        optimum = optimize.minimize(
            negative_log_posterior,
            self._parameters,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": iterations},
        )
        self._parameters, self._learned = optimum.x, True
