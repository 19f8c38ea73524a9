"""A small stand-in for the Hugging Face hub: what its two downloads ask of it, over plain HTTP on
127.0.0.1."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from forks import Forked

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def hub(repositories: dict[str, Path], gated=(), cut=()):
    """Serves each {"owner/name": folder}; yields (address, list of the requests so far).

    Names in `gated` are refused with 403; files named in `cut` break off in the middle.
    """
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = self.path.partition("?")[0]
            requests.append(f"{self.command} {path}")
            match = re.fullmatch(
                r"/(?:api/models/|datasets/)?([^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+)(?:/(.+))?)?",
                path,
            )
            name, kind, file = (match[1], match[2], match[4]) if match else (None, None, None)
            if name in gated:
                return self.refuse(403, "GatedRepo")
            if name not in repositories:
                return self.refuse(404, "RepoNotFound")
            files = sorted(path for path in repositories[name].rglob("*") if path.is_file())
            names = [str(path.relative_to(repositories[name])) for path in files]
            if kind == "resolve":
                if file not in names:
                    return self.refuse(404, "EntryNotFound")
                return self.send_file(repositories[name] / file)
            if kind == "tree":
                rows = [
                    {
                        "type": "file",
                        "path": name,
                        "size": path.stat().st_size,
                        "oid": etag(path.read_bytes()),
                    }
                    for name, path in zip(names, files, strict=True)
                ]
                return self.send(200, json.dumps(rows).encode())
            info = {
                "id": name,
                "modelId": name,
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in names],
            }
            info |= {"private": False, "tags": [], "downloads": 0, "likes": 0}
            return self.send(200, json.dumps(info).encode())

        def send_file(self, path: Path):
            body = path.read_bytes()
            headers = {
                "ETag": f'"{etag(body)}"',
                "X-Repo-Commit": COMMIT,
                "Content-Type": "application/octet-stream",
            }
            if path.name in cut and self.command == "GET":
                self.send(200, body[: len(body) // 2], headers, length=len(body))
                self.close_connection = True
            else:
                self.send(200, body, headers)

        def refuse(self, status: int, code: str):
            self.send(status, b'{"error": "no"}', {"X-Error-Code": code})

        def send(self, status: int, body: bytes, headers=None, length=None):
            self.send_response(status)
            for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def said_with_a_hub(function, *arguments, cache: Path, address: str, **variables) -> str:
    """What `function` prints in a fresh process that asks the hub at `address` and keeps its cache
    in `cache`.

    huggingface_hub reads its settings when it is imported, so no process that has imported it will
    do.
    """
    environment = {name: None for name in os.environ if name.startswith(("HF_", "HUGGING"))}
    environment |= {name: None for name in os.environ if name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(cache), "NO_PROXY": "127.0.0.1"}
    environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment |= variables
    with tempfile.TemporaryDirectory() as folder:
        streams = (None, Path(folder, "out"), Path(folder, "err"))
        place = Path(folder, "run")
        run = Forked(
            function,
            *arguments,
            folder=place,
            streams=streams,
            settings={"time.sleep": wait_for_nothing},
            variables=environment,
        )
        assert run.end() == 0, streams[2].read_text(encoding="utf-8")
        return streams[1].read_text(encoding="utf-8").rstrip("\n")


def wait_for_nothing(seconds: float) -> None:
    """huggingface_hub would wait a second before each of its five next attempts."""


def etag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
