"""The compiled part; all else is in pyproject.toml. Where it cannot be built, the installation goes on without.

With FACTORCELL_KERNEL=off it is not tried, as it would not be used.

It is no Python module but a plain library, which ctypes loads: one build serves every Python on its platform. So
its file and its wheel are named after no version of Python.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/factorcell/model/kernels/native")


class Library(build_ext):
    """Builds `_kernels.so`, under that name on every system: library.py looks for it."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the files side by side, the instruction sets at once: each takes seconds."""
        compile_files = self.compiler.compile

        def compile_together(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                found = pool.map(lambda source: compile_files([source], **options), sources)
                return [name for names in found for name in names]

        self.compiler.compile = compile_together
        super().build_extension(ext)

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


KERNELS = Extension(
    "factorcell.model.kernels._kernels",
    sorted(map(str, NATIVE.glob("*.cpp"))),
    depends=sorted(map(str, [*NATIVE.glob("*.h"), *NATIVE.glob("*.inc")])),
    extra_compile_args=["-O3", "-g0", "-std=c++17", "-pthread"],
    extra_link_args=["-pthread", "-ldl"],
    optional=True,
)

setup(
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
    ext_modules=[] if os.environ.get("FACTORCELL_KERNEL") == "off" else [KERNELS],
)
