"""The compiled part; all else is in pyproject.toml. Where it cannot be built, the installation goes on without."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "factorcell.model.kernels._kernels",
            ["src/factorcell/model/kernels/native/kernels.cpp"],
            depends=[
                f"src/factorcell/model/kernels/native/{name}"
                for name in ("kernels.h", "vectors.inc", "recurrence.inc", "softmax.inc", "rows.inc", "search.inc")
            ],
            extra_compile_args=["-O3", "-g0", "-std=c++17", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
