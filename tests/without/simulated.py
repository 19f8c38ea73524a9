"""Other systems, simulated on Linux: QWENLAB_WITHOUT=posix, float64, or both with a comma.

tests/conftest.py puts this folder on PYTHONPATH, so what a test starts lacks the same.

posix: `fcntl`, `resource`, `os.fork` and what builds on it, and `signal.SIGALRM`, which Windows
lacks.
float64: the library may not make a tensor of that type from one that may lie on a device, as
Apple's MPS refuses it. It may on the host: from numbers, or from what it moved there by `.cpu()`.
"""

import os
import sys

WITHOUT = set(filter(None, os.environ.get("QWENLAB_WITHOUT", "").split(",")))
if WITHOUT - {"posix", "float64"}:
    sys.exit(f"QWENLAB_WITHOUT={','.join(sorted(WITHOUT))}, expected posix, float64 or both")


def remove_posix() -> None:
    import signal
    import warnings

    try:
        import psutil  # noqa: F401  its part for Linux imports resource, that for Windows does not
    except ImportError:  # an environment without qwenlab
        pass
    warnings.filterwarnings("ignore", "only soft file lock is available")
    for module in ("fcntl", "resource"):
        sys.modules[module] = None  # importing it raises ImportError
    for module, names in (
        (os, ("fork", "forkpty", "killpg", "setsid")),
        (signal, ("SIGALRM", "setitimer", "alarm")),
    ):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)


class RefuseFloat64:
    """Refuses float64 to the library as soon as torch is there: asked for each module's place, it
    knows none."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith("qwenlab.") and hasattr(sys.modules.get("torch"), "__version__"):
            sys.meta_path.remove(self)
            import refusing  # beside this file

            refusing.float64()
        return None


if "posix" in WITHOUT:
    remove_posix()
if "float64" in WITHOUT:
    sys.meta_path.insert(0, RefuseFloat64())
