"""An OpenAI-compatible provider of models that are none: `provider.py PORT`. The same question has the same answer.

Texts with words in common have vectors that are near each other, and a question about sources is answered with the
sentence that has most of its words, and with that source's number. `POST /control` makes it fail.
A program of its own that needs no package.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DIMENSIONS = 512

SOURCE = re.compile(r"Source ID \[(\w{7})\]:\s*(.+?)(?=\s*Source ID \[|\n\s*###|\Z)", re.DOTALL)
"""A passage as R2R puts it into its prompt."""

QUERY = re.compile(r"### Query:\s*(.+?)\s*###", re.DOTALL)

STOP_WORDS = frozenset(
    "a an and are as at be by does for from how in is it of on or the to what when which with".split()
)


def words_of(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]


def features_of(text: str) -> Iterator[tuple[str, float]]:
    """Words, and the beginnings of long ones, so that "sleeping" and "sleeps" have something in common."""
    for word in words_of(text):
        yield word, 1.0
        yield word[:4], 0.5


def embed(text: str, dimensions: int) -> list[float]:
    """A vector of length one."""
    vector = [0.0] * dimensions
    for feature, weight in features_of(text):
        number = int.from_bytes(blake2b(feature.encode(errors="replace"), digest_size=8).digest())
        vector[number % dimensions] += weight if number >> 63 else -weight
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else [1.0, *vector[1:]]


def answer(prompt: str) -> str:
    """The sentence of the sources that has most words of the query."""
    sources = SOURCE.findall(prompt)
    asked = QUERY.search(prompt)
    wanted = set(words_of(asked.group(1) if asked else prompt))
    sentences = [(sentence, number) for number, text in sources for sentence in re.split(r"(?<=[.!?])\s+", text)]
    if not sentences:
        return "Nothing was given to answer from."
    sentence, number = max(sentences, key=lambda found: len(wanted & set(words_of(found[0]))))
    return f"{sentence.strip()[:400]} [{number}]"


class Failing(Exception):
    """It was told to answer so."""


class Models:
    """What is behind the addresses, and how it behaves."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failing: dict[str, int] = {}

    def control(self, body: dict[str, Any]) -> dict[str, Any]:
        """Be told how to behave from now on; what is not named works."""
        self.failing = {kind: int(body[kind]) for kind in ("embeddings", "chat") if body.get(kind)}
        return {}

    def embeddings(self, body: dict[str, Any]) -> dict[str, Any]:
        self._begin("embeddings")
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        dimensions = int(body.get("dimensions") or DIMENSIONS)
        vectors = [embed(str(text), dimensions) for text in texts]
        in_base64 = body.get("encoding_format") == "base64"
        shown = [_encode_base64(vector) if in_base64 else vector for vector in vectors]
        data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(shown)]
        return {
            "object": "list",
            "model": body.get("model"),
            "data": data,
            "usage": _usage(sum(map(len, map(str, texts)))),
        }

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        self._begin("chat")
        prompt = "\n".join(str(message.get("content") or "") for message in body["messages"])
        message = {"role": "assistant", "content": answer(prompt)}
        return {
            "id": "chatcmpl-lab",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model"),
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": _usage(len(prompt)),
        }

    def _begin(self, kind: str) -> None:
        self.counts[kind] += 1
        if kind in self.failing:
            raise Failing(self.failing[kind])


def _encode_base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _usage(characters: int) -> dict[str, int]:
    return {"prompt_tokens": characters // 4, "completion_tokens": 0, "total_tokens": characters // 4}


MODELS = Models()
ROUTES = {"/v1/embeddings": MODELS.embeddings, "/v1/chat/completions": MODELS.chat, "/control": MODELS.control}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer of two packets would else wait 40 ms for the first one's receipt
    wbufsize = -1

    def do_GET(self) -> None:
        self._answer(200, dict(MODELS.counts))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        route = ROUTES.get(self.path)
        try:
            self._answer(200, route(body)) if route else self._fail(404, f"nothing is at {self.path}")
        except Failing as failing:
            self._fail(failing.args[0], "the lab's provider was told to fail")

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: R2R's own log has it."""

    def _fail(self, status: int, message: str) -> None:
        self._answer(status, {"error": {"message": message, "type": "server_error"}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
