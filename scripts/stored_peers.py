"""Makes the stored table of all peers: src/qwenlab/teach/stored/peers.json.

What `qwenlab peers --table` measures, with its provenance. On an otherwise idle machine, with
`llama-cpp-python` and `gguf` installed for the third peer:

    python scripts/stored_peers.py --out src/qwenlab/teach/stored/peers.json
"""

import argparse
import json
import sys
from datetime import date
from pathlib import Path

import psutil
import torch

from qwenlab.bench import peer_table
from qwenlab.console import say
from qwenlab.files import write_whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    load = f"{psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores"
    made = peer_table(set_threads=torch.set_num_threads, progress=True, on_start=say)
    print(made)
    provenance = {
        "command": " ".join(["python", "scripts/stored_peers.py", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "load": load,
    }
    write_whole(
        asked.out, json.dumps({"provenance": provenance, **json.loads(made.json())}).encode()
    )


if __name__ == "__main__":
    main()
