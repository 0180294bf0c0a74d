"""Installs the package `rop`, its benchmark (the folder bench/ becomes rop.bench) and the command `rop`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
(VERSION,) = re.findall(r'^__version__ = "(.+)"$', (HERE / "rop" / "__init__.py").read_text("utf-8"), re.M)

TORCH = "torch==2.13.0"  # the reference of tests and benchmark: pinned, so that both mean the same thing everywhere
ANY_TORCH = "torch>=2.4,<3"  # for users: what from_torch and the optimizer ask of torch, with NumPy 2
JAX = ["jax==0.10.2; python_version >= '3.11'", "jaxlib==0.10.2; python_version >= '3.11'"]
SKLEARN = "scikit-learn>=1.6"
SHOW = ["rich>=13", "matplotlib>=3.8"]
PILLOW = "Pillow>=10"
TOOLS = ["pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "coverage>=7.6", "pandas>=2", "ruff>=0.9", "mypy>=1.14"]
CUDA12, CUDA13 = "numba-cuda[cu12]>=0.30", "numba-cuda[cu13]>=0.30"

setup(
    name="rop",
    version=VERSION,
    description="Exact loss, gradient, Hessian-vector and third-order products of neural networks, fast on a CPU",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=[*find_packages(include=["rop", "rop.*"]), "rop.bench", "rop.bench.engines"],
    package_dir={"rop.bench": "bench", "rop.bench.engines": "bench/engines"},
    package_data={"rop": ["py.typed"]},
    install_requires=["numpy>=1.26", "scipy>=1.12", "numba>=0.61"],
    extras_require={
        "train": [SKLEARN, *SHOW],
        "sklearn": [SKLEARN],
        "torch": [ANY_TORCH],
        "bench": [TORCH, *JAX, *SHOW],
        "reproduce": [TORCH, PILLOW, SKLEARN, *SHOW],
        "test": [TORCH, PILLOW, SKLEARN, *SHOW, *TOOLS],
        "cuda12": [CUDA12],
        "cuda13": [CUDA13],
        "cuda-test": [CUDA12, "greenlet>=3"],  # compiles, simulates and checks the GPU's kernels without a GPU
    },
    entry_points={"console_scripts": ["rop = rop.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    zip_safe=False,
)
