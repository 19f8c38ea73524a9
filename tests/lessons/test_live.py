"""Every lesson live, as in Jupyter and as in Colab: ipywidgets 8 from .venv, ipywidgets 7.7 from
.venv-widgets7."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import FULL

import qwenlab

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PYTHON = {"8": Path(sys.executable), "7.7": ROOT / ".venv-widgets7" / "bin" / "python"}

# All widgets are one, so one lesson does for the reduced count. Only the full count needs .venv-widgets7.
RUNS = (
    [(path, version) for path in NOTEBOOKS for version in PYTHON] if FULL else [(NOTEBOOKS[3], "8")]
)


@pytest.mark.parametrize(
    ("path", "version"), RUNS, ids=[f"{path.stem}-{version}" for path, version in RUNS]
)
def test_a_lesson_runs_live_and_its_sliders_move_one_picture(path, version):
    if not PYTHON[version].exists():
        pytest.skip("no .venv-widgets7: `make test-all` creates it")
    environment = {name: value for name, value in os.environ.items() if name != "QWENLAB_PAGE"}
    run = subprocess.run(
        [str(PYTHON[version]), str(ROOT / "tests" / "lessons" / "live_notebook.py"), str(path)],
        capture_output=True,
        text=True,
        env=environment,
        encoding="utf-8",
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["qwenlab"] == qwenlab.__file__  # what the other tests test
    assert found["ipywidgets"].startswith(version)
    assert found["widgets"] >= 1
    assert found["changed"] == found["widgets"]
    assert found["pictures added"] == 0
    assert found["open figures"] == 0
