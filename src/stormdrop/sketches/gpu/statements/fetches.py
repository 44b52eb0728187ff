"""Where an element that a thread fetches lies in shared memory, in the form that TVM's simplifier gives the index.

All threads of a block fetch together: element v of the vector of thread t in round F has the position

    F * step + t * width + v        step = threads * width

in the buffer. Its index along a dimension is a digit of this number, of which the simplifier takes out what divides:

    (F * step + t * width + v) % (extent * stride) // stride
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...statements.indices import Atom, Ints, Mask, Term


@dataclass(frozen=True, eq=False)
class Digit:
    """The index along a dimension.

    Attributes:
        terms: Its terms.
        undivided: The terms before the division.
        stride: By what they are divided.
        extent: The extent of the dimension.
        vectors: Where whole vectors lie along the dimension.
    """

    terms: tuple[Term, ...]
    undivided: tuple[Term, ...]
    stride: Ints
    extent: Ints
    vectors: Mask


@dataclass(frozen=True, eq=False)
class Fetch:
    """How n schedules fetch a buffer.

    Attributes:
        rounds: How often all threads fetch.
        threads: The threads of a block, at least 2.
        width: The elements of a vector.
        names: The loops over rounds, threads, and elements of a vector.
    """

    rounds: Ints
    threads: Ints
    width: Ints
    names: tuple[str, str, str]

    def digits(self, extents: Sequence[Ints], remainders: Mask) -> tuple[list[Digit], Mask]:
        """The index along each dimension, and in which schedules it is known.

        Args:
            extents: Those of the buffer.
            remainders: Where all indices but the first are remainders, even if those before are 0, because TVM did not
                know how many elements there are.
        """
        found: list[Digit] = []
        known = self.threads > 1
        one = np.ones_like(self.rounds)
        strides = [one]
        for extent in reversed(extents[1:]):
            strides.append(strides[-1] * extent)
        before = one  # the elements of all dimensions before
        for position, (extent, stride) in enumerate(zip(extents, reversed(strides), strict=True)):
            outermost = (before == 1) & ~remainders if position else before == 1
            terms, sure = self._digit(extent, stride, outermost)
            undivided, also = self._digit(extent * stride, one, outermost)
            found.append(Digit(terms, undivided, stride, extent, (self.width > 1) & (stride == self.width)))
            known = known & sure & also
            before = before * extent
        return found, known

    def _digit(self, extent: Ints, stride: Ints, outermost: Mask) -> tuple[tuple[Term, ...], Mask]:
        """The terms of a digit. What stands in the comments is what TVM makes of it where the mask beside it holds."""
        width, threads, step = self.width, self.threads, self.threads * self.width
        there, modulus = extent > 1, extent * stride
        rounds, vector = there & (self.rounds > 1), there & (width > 1)
        bounded = outermost | (self.rounds * step <= modulus)  # no % is needed

        # The part of a thread, (t * width + v) // stride.
        whole = stride % width == 0  # t // per
        broken = ~whole & (width % stride == 0)  # t * each + v // stride
        mixed = ~whole & ~broken  # (t * width + v) // stride
        per, each = np.maximum(stride // width, 1), np.maximum(width // stride, 1)

        even = rounds & (step % stride == 0)  # F * factor + the part of a thread
        factor = np.maximum(step // stride, 1)
        alone = ~rounds | (even & ~bounded & (factor % extent == 0))  # F adds nothing to this digit
        even &= ~alone
        # The simplifier takes % out of a sum of two, if the first factor divides the modulus. It leaves sums of three.
        apart = even & ~bounded & ~broken & (extent % factor == 0)  # F % (extent / factor) * factor + ...
        inside = even & ~bounded & ~apart  # (F * factor + ...) % extent
        odd = rounds & ~even & ~alone
        fold = (width == 1) & (modulus % step == 0)
        steps = odd & (stride % step == 0) & (bounded | fold)  # F // (stride / step)
        folded = odd & ~steps & ~bounded & fold  # (F % (modulus / step) * step + t) // stride
        together = odd & ~steps  # (F * step + t * width + v) % modulus // stride

        rest = there & (alone | (even & ~inside))  # the part of a thread is not inside of the brackets above
        limited = rest & alone & ~outermost & (step > modulus)  # (the part of a thread) % extent
        within = limited & (each % extent == 0)  # v % modulus // stride
        outside = limited & broken & ~within & (extent % each == 0)  # t % (extent / each) * each + v // stride
        both = limited & broken & ~within & ~outside  # (t * each + v // stride) % extent
        several = rest & mixed & (step > stride)  # (t * width + v) // stride
        lanes = limited & several & (modulus % width == 0)  # (t % (modulus / width) * width + v) // stride

        F, t, v = self.names
        brackets = inside | together | both | several
        every = np.where(inside, factor, step)
        part = np.where(inside | both, np.where(broken, each, 1), width)
        inner = [
            Atom.of(F, inside | together, every, np.where(folded, modulus // step, 0)),
            Atom.of(
                t,
                brackets & ~(inside & whole & (threads <= per)),
                part,
                np.where(lanes, modulus // width, 0),
                np.where(inside & whole, per, 1),
            ),
            Atom.of(v, brackets & vector & ~(inside & whole), 1, 0, np.where((inside | both) & broken, stride, 1)),
        ]
        taken = (together & ~bounded & ~folded) | (several & limited & ~lanes)
        term = Term(
            tuple(inner),
            np.where(inside | both, extent, np.where(taken, modulus, 0)),
            np.where(together | several, stride, 1),
        )
        first = Atom.of(
            F,
            steps | (even & ~inside),
            np.where(steps, 1, factor),
            np.where(apart, extent // factor, np.where(steps & ~bounded, modulus // step, 0)),
            np.where(steps, stride // step, 1),
        )
        second = Atom.of(
            t,
            rest & ~both & ((whole & (threads > per)) | (broken & ~within & ~(outside & (extent == each)))),
            np.where(whole, 1, each),
            np.where(limited & whole, modulus // width, np.where(outside, extent // each, 0)),
            np.where(whole, per, 1),
        )
        third = Atom.of(v, rest & broken & ~both & vector, 1, np.where(within & (each > extent), modulus, 0), stride)
        known = ~(inside & mixed)
        return (Term((first,)), Term((second,)), Term((third,)), term), known
