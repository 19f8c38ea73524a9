"""Shared settings of the tests: reduced counts unless QWENLAB_FULL=1, one thread, never the
network.

With QWENLAB_WITHOUT=posix,float64 (or one of them) all is as on systems that lack these; what can't
run there is skipped, each with its reason. See without/simulated.py.
"""

import os
import signal
import sys

# Both are read on import, of huggingface_hub and torch; a test that needs a hub starts its own.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start, too

if os.environ.get("QWENLAB_WITHOUT"):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "without")
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, folder)
    import simulated  # noqa: F401

import pytest
import torch
from browser import address, chromium  # noqa: F401  (fixtures)
from helpers import FAMILIES, FULL, random_model
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from qwenlab.cli.main import main

# jsonschema, below nbformat, does without it. On import it builds grammars for a second.
sys.modules["rfc3987_syntax"] = None

# A shell's background jobs ignore Ctrl-C; tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "qwenlab", deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("qwenlab")
THREADS = torch.get_num_threads()


# Files whose tests share nothing and take long: each test goes to whatever process is idle.
APART = ("test_lessons.py", "test_live.py", "test_verdicts.py")
# Files that import models of transformers, which takes seconds: one process does.
TRANSFORMERS = (
    "test_config.py",
    "test_hybrid_parity.py",
    "test_lesson_boxes.py",
    "test_loading.py",
    "test_parity.py",
    "test_all_peers.py",
    "test_peers.py",
    "test_tiny.py",
)
# The longest files. They come first, so that no process ends alone.
LONGEST = (
    "test_browser.py",
    *TRANSFORMERS,
    *APART,
    "test_sampling_widgets.py",
    "test_grading.py",
    "test_page_model.py",
    "test_lesson_12.py",
    "test_mask_and_nan.py",
    "test_batch_widgets.py",
    "test_evaluation.py",
    "test_site.py",
    "test_distillation.py",
    "test_engine.py",
    "test_lesson_13.py",
    "test_lesson_14.py",
    "test_lesson_11.py",
    "test_grpo.py",
    "test_chat.py",
)


def place_in_line(item) -> int:
    name = item.path.name
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(items):
    for item in items:
        if not FULL and item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="full count only: make test-all"))
    items.sort(key=place_in_line)


class Groups(LoadScopeScheduling):
    """Tests of one group run in one process, so that a module's fixtures are made once.

    Not by `--dist loadgroup`: pytest-xdist 3.8 writes its groups into an attribute that pytest 9.2
    no longer reads, and spreads the tests one by one.
    """

    def _split_scope(self, nodeid: str) -> str:
        name = nodeid.split("::")[0].split("/")[-1]
        if name in APART:
            return nodeid
        return "transformers" if name in TRANSFORMERS else name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Groups(config, log)


@pytest.fixture(autouse=True)
def switches_of_torch():
    """A test that changes the global switches of torch does not change the next test."""
    torch.manual_seed(0)
    yield
    torch.set_grad_enabled(True)
    torch.set_num_threads(THREADS)  # commands choose their own


@pytest.fixture(scope="session")
def dense():
    """A random dense model of some hundred thousand parameters; initializer_range 0.2, so that
    logits differ widely."""
    return random_model(seed=0)


@pytest.fixture(scope="session", params=FAMILIES)
def model(request):
    """The same, once of each family: what must hold for attention and for DeltaNet alike."""
    return FAMILIES[request.param](seed=0)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs a command in an empty folder; returns its status, stdout and stderr (without progress
    bars)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return (
            end.value.code,
            out,
            "".join(line for line in err.splitlines(keepends=True) if "qwenlab:" in line),
        )

    return run
