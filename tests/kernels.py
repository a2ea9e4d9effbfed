"""The instruction sets that tests of the compiled kernels use.

`FACTORCELL_KERNEL` limits them, so that one machine can test what others compute: with `avx2` there is nothing beyond
AVX2, and with `off` there is no compiled code.
"""

import pytest

from factorcell.nn.kernels import library

NATIVE = library.variant()
VARIANTS = () if NATIVE is None else library.VARIANTS[: library.VARIANTS.index(NATIVE) + 1]
compiled = pytest.mark.skipif(NATIVE is None, reason="the compiled kernels are missing or switched off")
