"""What an import loads: little, and nothing heavy before it is needed."""

import json
import os
import subprocess
import sys

import pytest

# One process imports torch, and each program runs in a fork of it, if there are forks: what it
# loads besides.
ALONE = """
import json, sys
import torch
before = set(sys.modules)
exec(sys.argv[1])
print(json.dumps(sorted(set(sys.modules) - before)))
"""
FORKS = """
import json, os, sys
import torch
before = set(sys.modules)
for program in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        exec(program)
        print(json.dumps(sorted(set(sys.modules) - before)), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"failed: {program}")
"""
HEAVY = {
    "transformers",
    "sympy",
    "httpx",
    "ray",
    "matplotlib",
    "ipywidgets",
    "pandas",
    "torch._dynamo",
}
PROGRAMS = {
    "the library": "import qwenlab; qwenlab.load, qwenlab.generate, qwenlab.left_pad",
    "a model": "import qwenlab; qwenlab.load('tiny'), qwenlab.load('tiny-hybrid')",
    "evaluation": "import qwenlab.evaluation",
    "bench": "from qwenlab import bench; bench.sweep",
    "teach": "from qwenlab.teach import explore, heatmap; heatmap([[1]])._repr_html_()",
    "an exercise": """
from qwenlab.teach import check
check("no such exercise", None)
check("left-pad", lambda sequences, pad_id: None)
""",
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The modules that each program loads."""
    programs = list(PROGRAMS.values())
    if hasattr(os, "fork"):
        lines = printed(FORKS, json.dumps(programs))
    else:
        lines = [line for program in programs for line in printed(ALONE, program)]
    found = [set(json.loads(line)) for line in lines]
    return dict(zip(PROGRAMS, found, strict=True))


def printed(program: str, argument: str) -> list[str]:
    """The lines that a program prints in a process of its own."""
    command = [sys.executable, "-c", program, argument]
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_heavy_is_loaded(loaded, name):
    assert "qwenlab" in loaded[name] and not HEAVY & loaded[name]


def test_the_library_loads_little(loaded):
    assert len(loaded["the library"]) < 200 and "huggingface_hub" not in loaded["the library"]


def test_evaluation_loads_no_math_verify_before_it_compares(loaded):
    assert not {"math_verify", "latex2sympy2_extended"} & loaded["evaluation"]


def test_check_loads_the_file_of_its_lesson_only(loaded):
    files = {name for name in loaded["an exercise"] if name.startswith("qwenlab.exercises.")}
    assert files == {"qwenlab.exercises.lesson_02"}


def test_the_scheduler_needs_no_torch():
    program = "import sys, qwenlab.engine.scheduler; print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8"
    )
    assert (run.stdout.strip(), run.stderr) == ("False", "")
