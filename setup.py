"""Build of the compiled kernels; everything else is in pyproject.toml.

If the kernels cannot be built, the installation continues without them. FACTORCELL_KERNEL=off skips the build.
The output of the compiler is shown only if it fails.

The kernels are not a Python module but a plain library that ctypes loads, so one build works with every Python version
on its platform. The names of the library and of the wheel therefore contain no Python version.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/factorcell/nn/kernels/native")


@contextmanager
def output_on_failure() -> Iterator[None]:
    """Hide the output of this process and of the compilers that it starts; show it if the block fails."""
    saved_descriptors = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as output:
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(output.fileno(), descriptor)
        try:
            yield
        except BaseException:
            output.seek(0)
            os.write(saved_descriptors[1], output.read())
            raise
        finally:
            for stream, descriptor, saved in zip((sys.stdout, sys.stderr), (1, 2), saved_descriptors, strict=True):
                stream.flush()
                os.dup2(saved, descriptor)
                os.close(saved)


class Library(build_ext):
    """Build `_kernels.so`; library.py looks for this name on every system."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the files in parallel, since each instruction set takes seconds."""
        compile_files = self.compiler.compile

        def compile_in_parallel(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                results = pool.map(lambda source: compile_files([source], **options), sources)
                return [name for names in results for name in names]

        self.compiler.compile = compile_in_parallel
        with output_on_failure():
            super().build_extension(ext)

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library with this dotted name."""
        return f"{fullname.replace('.', '/')}.so"


class Wheel(bdist_wheel):
    """Tag the wheel `py3-none-PLATFORM`, or `py3-none-any` if the library could not be built."""

    def run(self) -> None:
        """Build first, because the tag depends on whether the library could be built."""
        self.run_command("build")
        if not all(Path(path).exists() for path in self.get_finalized_command("build_ext").get_outputs()):
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, its ABI and the platform."""
        return "py3", "none", super().get_tag()[2]


KERNELS = Extension(
    "factorcell.nn.kernels._kernels",
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
