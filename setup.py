"""The compiled part; all else is in pyproject.toml. Where it cannot be built, the installation goes on without.

It is no Python module but a plain library, which ctypes loads: one build serves every Python on its platform. So
its file and its wheel are named after no version of Python.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class Library(build_ext):
    """Builds `_kernels.so`, under that name on every system: library.py looks for it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Where the library of this dotted name lies."""
        return f"{fullname.replace('.', '/')}.so"


class Wheel(bdist_wheel):
    """Tagged `py3-none-PLATFORM` with the library, `py3-none-any` where it could not be built."""

    def run(self) -> None:
        """Build first: whether there is a library is known afterwards only."""
        self.run_command("build")
        if not all(Path(path).exists() for path in self.get_finalized_command("build_ext").get_outputs()):
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """The names of Python, its ABI and the platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
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
    ],
)
