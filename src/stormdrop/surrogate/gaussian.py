"""A small Gaussian process over points whose columns are levels of ordered knobs.

The covariance of two points is a product over columns of  f + (1 - f) M(distance / length),  M the Matérn-5/2
function, the distance counted in levels and scaled to 1 over the whole column. The floor f leaves points correlated
that agree in the other columns, however far apart they are in this one. Multiplied out, the product is a sum over
all subsets of columns (the ANOVA kernel), in which a subset of s columns weighs (1 - f)^s f^(d - s): main effects
first, interactions of many columns last. So what a knob does by itself is learned from few points.

Rasmussen and Williams, *Gaussian Processes for Machine Learning*, algorithm 2.1 and section 5.4.1 (the likelihood
and its gradient). Lengths and the nugget are at the maximum of the posterior under log-normal priors, the scale is
at its maximum likelihood in closed form.
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

# Log-normal priors: of the lengths (in units of the whole column) and of the nugget (a share of the variance).
_LENGTH_SPREAD = 1.0
_NUGGET, _NUGGET_SPREAD = 0.02, 1.0
_JITTER = 1e-8
# Steps of the optimiser: from the priors' medians, and from the last optimum.
_COLD, _WARM = 30, 8


@dataclass
class Prediction:
    """Of m points: their `levels` (m, d), `mean` (m,), and what their `deviation` (m,) is made of."""

    levels: Levels
    mean: Floats
    explained: Floats
    variance: Floats
    unit: float

    @property
    def deviation(self) -> Floats:
        """Standard deviation of the noise-free value."""
        found: Floats = self.unit * np.sqrt(np.maximum(self.variance, 1e-9))
        return found


@cache
def _blas() -> ThreadpoolController:
    """To keep matrices of some hundred rows on one thread: with more, waiting for each other takes the time.

    Measured beside other load: 175 ms of storm's search per evaluation with two threads, 5 with one.
    """
    from scipy import linalg  # noqa: F401  what is controlled must be loaded before
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _on_one_thread(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    @wraps(method)
    def limited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with _blas().limit(limits=1, user_api="blas"):
            return method(*args, **kwargs)

    return limited


class GaussianProcess:
    """Fitted again and again to a growing set of points; each fit starts from the parameters of the last one."""

    def __init__(self, sizes: Sequence[int], floor: float = 0.6, length: float = 0.5) -> None:
        """`sizes`: the levels of each column, one of a single level is ignored. `length`: median of its prior."""
        self._columns = [column for column, size in enumerate(sizes) if size > 1]
        self._sizes = [sizes[column] for column in self._columns]
        self._steps = [np.abs(np.subtract.outer(*[np.arange(size) / (size - 1)] * 2)) for size in self._sizes]
        self._floor = floor
        columns = len(self._columns)
        self._centre = np.append(np.full(columns, math.log(length)), math.log(_NUGGET))
        self._spread = np.append(np.full(columns, _LENGTH_SPREAD), _NUGGET_SPREAD)
        self._parameters = self._centre.copy()
        self._fitted = False

    @_on_one_thread
    def fit(self, levels: Levels, values: Floats, groups: Floats, learn: bool = True) -> None:
        """Condition on `values` (n,) at `levels` (n, d); `learn` says whether lengths and nugget move first.

        `groups` (n,) counts how often each value was observed: by so much its share of the nugget is smaller.
        """
        from scipy import linalg  # here and below: 70 ms that a command that fits nothing need not wait for

        self._levels = levels
        self._mean, self._unit = float(values.mean()), float(values.std()) or 1.0
        standard = (values - self._mean) / self._unit
        if learn and standard.any():  # values that are all the same teach nothing
            self._learn(levels, standard, groups)
        self._factors = self._tables(self._parameters)
        covariance = self._covariance(levels, levels)
        covariance[np.diag_indices(len(values))] += math.exp(self._parameters[-1]) / groups + _JITTER
        self._factor = np.linalg.cholesky(covariance)
        self._weights = linalg.cho_solve((self._factor, True), standard)
        self._scale = math.sqrt(max(float(standard @ self._weights) / len(values), 1e-6))

    @_on_one_thread
    def predict(self, levels: Levels) -> Prediction:
        """Mean and deviation of the noise-free values at `levels` (m, d)."""
        from scipy import linalg

        cross = self._covariance(levels, self._levels)
        explained = linalg.solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        mean = self._mean + self._unit * (cross @ self._weights)
        variance = 1.0 - np.einsum("ij,ij->j", explained, explained)
        return Prediction(levels, mean, explained, variance, self._unit * self._scale)

    @_on_one_thread
    def believe(self, level: Levels, predictions: Sequence[Prediction] = ()) -> None:
        """Condition on one more point (1, d), as if what is expected there had been observed; adapt `predictions`.

        No mean is changed by that, but deviations are: of a batch, no two points should be there to say the same.
        """
        from scipy import linalg

        row = linalg.solve_triangular(self._factor, self._covariance(self._levels, level), lower=True)[:, 0]
        corner = math.sqrt(max(1.0 + math.exp(self._parameters[-1]) + _JITTER - float(row @ row), _JITTER))
        for each in predictions:
            further = (self._covariance(level, each.levels)[0] - row @ each.explained) / corner
            each.explained = np.vstack([each.explained, further])
            each.variance = each.variance - further**2
        size = len(row)
        factor = np.zeros((size + 1, size + 1))
        factor[:size, :size], factor[size, :size], factor[size, size] = self._factor, row, corner
        self._factor, self._levels = factor, np.vstack([self._levels, level])
        self._weights = np.append(self._weights, 0.0)

    def _tables(self, parameters: Floats) -> list[Floats]:
        """Per column the factor of the covariance between each two levels."""
        tables = []
        for steps, log_length in zip(self._steps, parameters, strict=False):
            r = steps * (math.sqrt(5) / math.exp(log_length))
            tables.append(self._floor + (1 - self._floor) * (1 + r + r * r / 3) * np.exp(-r))
        return tables

    def _covariance(self, a: Levels, b: Levels) -> Floats:
        product = np.ones((len(a), len(b)))
        for column, table in zip(self._columns, self._factors, strict=True):
            product *= np.take(table[a[:, column]], b[:, column], axis=1)
        return product

    def _learn(self, levels: Levels, standard: Floats, groups: Floats) -> None:
        from scipy import linalg, optimize

        n = len(standard)
        pairs = [
            (levels[:, column, None] * size + levels[None, :, column]).ravel()
            for column, size in zip(self._columns, self._sizes, strict=True)
        ]
        identity = np.eye(n)

        def negative_log_posterior(parameters: Floats) -> tuple[float, Floats]:
            tables = self._tables(parameters)
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
            for i, (pair, table, steps) in enumerate(zip(pairs, tables, self._steps, strict=True)):
                r = steps * (math.sqrt(5) / math.exp(parameters[i]))
                ratio = (1 - self._floor) * (r * r / 3) * (1 + r) * np.exp(-r) / table
                gradient[i] = 0.5 * np.bincount(pair, weighted, minlength=ratio.size) @ ratio.ravel()
            gradient[-1] = 0.5 * nugget * float(np.sum(np.diag(slope) / groups))
            off = (parameters - self._centre) / self._spread
            value = 0.5 * n * math.log(scale) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(off @ off)
            return value, gradient + off / self._spread

        bounds = [*[(-4.0, 4.0)] * len(self._columns), (-9.0, 1.0)]
        steps = _WARM if self._fitted else _COLD
        found = optimize.minimize(
            negative_log_posterior,
            self._parameters,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": steps},
        )
        self._parameters, self._fitted = found.x, True
