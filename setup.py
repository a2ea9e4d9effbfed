"""The compiled part; all else is in pyproject.toml. Where it cannot be built, the installation goes on without."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "factorcell._recurrence",
            ["src/factorcell/native/recurrence.cpp"],
            depends=["src/factorcell/native/recurrence.h", "src/factorcell/native/recurrence_lanes.inc"],
            extra_compile_args=["-O3", "-std=c++17", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
