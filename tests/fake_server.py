"""A server that speaks the completions API as vLLM's does, over our own engine, and that can be told
to fail."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import qwenlab
from qwenlab.engine.prompts import new_request
from qwenlab.engine.request import SamplingParams
from qwenlab.evaluation.completion_server import api_seed

LOCK = threading.Lock()  # one engine at a time


@cache
def shipped():
    return qwenlab.load("tiny")


@cache
def completed(prompt: tuple[int, ...], stop: tuple[int, ...], key: tuple, options: tuple):
    """(ids with the stop id, logprobs, finish_reason)."""
    model, _ = shipped()
    params = SamplingParams(stop=frozenset(stop), **dict(options))
    engine = qwenlab.Engine(model, 1)
    request = new_request(model, list(prompt), params, rng_key=key)
    engine.add_request(request)
    while engine.has_unfinished():
        engine.step()
    ids = list(request.token_ids)
    ids += [] if request.stop_id is None else [request.stop_id]
    return ids, request.logprobs, request.finish_reason


class FakeServer:
    """Serves the shipped "tiny" on a free port. Used in a `with` statement; `url` is its address.

    keys: the random streams that seeds stand for. fault: what goes wrong with the completion of
    that number, counted from 0: None, a status, or a name (see `Handler.do_POST`). lacks: what this
    server can't do, for all completions.
    """

    def __init__(self, keys=(), fault: Callable = lambda number: None, lacks=(), port: int = 0):
        self.keys = {api_seed(key): key for key in keys}
        self.fault = fault
        self.lacks = set(lacks)
        self.completions = 0
        self.bodies: list[dict] = []
        self.models = [{"id": "tiny", "owned_by": "fake", "max_model_len": 256}]
        self.version = "1.0"
        self.released = threading.Event()
        owner = self

        class Bound(Handler):
            server_of_test = owner

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Bound)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        serve = {"poll_interval": 0.01}
        threading.Thread(target=self.http.serve_forever, kwargs=serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.http.shutdown()
        self.http.server_close()

    def reply(self, body: dict) -> dict:
        _, tokenizer = shipped()
        prompt = body["prompt"]
        stop = body.get("stop_token_ids", sorted(shipped()[0].stop_ids))
        if isinstance(prompt, str):
            prompt = with_control(tokenizer, prompt)
        options = {name: body.get(name) for name in ("temperature", "top_p", "top_k")}
        options["top_k"] = max(0, options["top_k"] or 0)
        options["max_new_tokens"] = body["max_tokens"]
        key = self.keys.get(body["seed"], (body["seed"], 0, 0))
        if "seeds" in self.lacks:
            key = (len(self.bodies), 0, 0)
        with LOCK:
            ids, logprobs, reason = completed(
                tuple(prompt), tuple(stop), key, tuple(sorted(options.items()))
            )
        stopped = reason == "stop"
        text = tokenizer.decode(ids[:-1] if stopped else ids)
        choice = {"index": 0, "text": text, "finish_reason": reason}
        if "answers as token ids" not in self.lacks:
            choice |= {"token_ids": list(ids), "prompt_token_ids": list(prompt)}
        if "logprobs" not in self.lacks:
            choice["logprobs"] = {"token_logprobs": list(logprobs)}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        return {"choices": [choice], "usage": usage}


def with_control(tokenizer, text: str) -> list[int]:
    """As a server reads a prompt that is text: control tokens become their ids."""
    for mark, id in tokenizer.control.items():
        before, found, after = text.partition(mark)
        if found:
            return [*with_control(tokenizer, before), id, *with_control(tokenizer, after)]
    return tokenizer.encode(text) if text else []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_test: FakeServer

    def log_message(self, *_):
        pass

    def send(self, status: int, value: object, cut: int | None = None, **headers: str):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        with suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            self.end_headers()
            self.wfile.write(data[:cut])
        self.close_connection = cut is not None

    def do_GET(self):
        owner = self.server_of_test
        if self.path == "/v1/models":
            self.send(200, {"data": owner.models})
        elif self.path == "/version" and owner.version:
            self.send(200, {"version": owner.version})
        else:
            self.send(404, {"detail": "Not Found"})

    def do_POST(self):
        owner = self.server_of_test
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            number = owner.completions
            owner.completions += 1
            owner.bodies.append(body)
        fault = owner.fault(number)
        if isinstance(fault, int):
            self.send(fault, {"error": {"message": "as told"}}, Retry_After="0")
            return
        if fault == "hang":
            owner.released.wait(60)
        if "prompts as token ids" in owner.lacks and not isinstance(body["prompt"], str):
            self.send(422, {"detail": "prompt: expected a string"})
            return
        reply = owner.reply(body)
        choice = reply["choices"][0]
        if fault == "other ids":
            choice["prompt_token_ids"][-1] += 1
        elif fault == "too few tokens":
            del choice["token_ids"][2:], choice["logprobs"]["token_logprobs"][2:]
            choice["finish_reason"] = "length"
        elif fault == "no stop id":
            choice["token_ids"].pop()
            choice["finish_reason"] = "stop"
        elif fault == "strange ids":
            choice["token_ids"][0] = 10**6
        elif fault == "no thinking":
            choice["text"] = choice["text"].replace("<think>", "")
        elif fault == "aborted":
            choice["finish_reason"] = "abort"
        if fault == "garbage":
            self.send(200, b"<html>")
        else:
            self.send(200, reply, cut=20 if fault == "half a body" else None)
