"""An MCP server over standard input and output that does wrong what can be done wrong; only the standard library.

    python bad_stdio.py [MODE,MODE…]

Modes, which hold from the start:
  exit         says why on stderr, with a secret in it, and exits with status 3 before it reads anything
  hang         reads and never answers, not even `initialize`
  hanglist     answers everything but the lists
  pages        `tools/list` never comes to an end: every page has another cursor
  samepage     `tools/list` gives the same cursor again and again
  badlist      `tools/list` holds entries that are no tools among the good ones
  garbagefirst prints a banner, a broken line and an invalid byte before its first message
  ignoreterm   neither the end of its input nor SIGTERM makes it end
  fork         has a child that neither SIGTERM nor the end of its input ends; it holds stdout and stderr open
  slowexit=0.5 ends so many seconds after its input has; SIGTERM makes it end with status 1
  wrongversion answers `initialize` with a revision that nobody knows
Tools, each a fault; what is in brackets is an argument with its default:
  echo[text]   none: gives the text back.      sleep[seconds=1]  answers later, unless it is cancelled
  pid  environ  cwd  heard                     tell of themselves; `heard` lists the methods received so far
  forked       the process id of the child that `fork` has started, now or at the start
  hang         never answers                   crash[status=1]   exits at once, with a last word on stderr
  half         half an answer, then exits      closeout          closes its stdout and lives on
  deaf         stops to read its input         drip[seconds=.1]  one byte of the answer at a time; with null for the
               seconds, the last one after the notification `notifications/enough`
  garbage      lines that are no JSON, no object, or empty, then the answer
  utf8bad      a line with an invalid byte, then the answer
  bignonl[bytes=200 MB]  one line without an end       big[bytes=10 MB]  a valid answer of that size
  deep[depth=100,000]    a line of nested lists, then the answer
  deepresult[depth=200]  an answer as deep as that
  nullresult  noresult  textresult             an answer whose result is null, missing, or a text
  wrongid      an answer to something nobody asked, then the answer
  dup          the answer twice                late              answers only once it has been cancelled
  batch        the answer in a list, beside a notification and a number
  crlf         the answer with CR LF, after empty lines
  notifyflood[count=100,000]  stderrflood[count=50,000]  then the answer; a count of 0 is without end
               and its answer, after the notification `notifications/enough`, is how many there were
  stderrodd    odd stderr: control characters, invalid bytes, one line of 100 kB, one without an end; then the answer
  secret       the value of the variable API_KEY, and a token, on stderr; then the answer
  ignoreterm   as the mode, from now on        toolerror  rpcerror  an error of the tool; of the protocol
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MODES = set((sys.argv[1] if len(sys.argv) > 1 else "").split(",")) - {""}
EXIT_SECONDS = next((float(mode.removeprefix("slowexit=")) for mode in MODES if mode.startswith("slowexit=")), 0.0)
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)

_writing = threading.Lock()
_cancelled: dict[Any, threading.Event] = {}
_heard: list[str] = []
_enough = threading.Event()
_forked: list[subprocess.Popen[bytes]] = []


def put(data: bytes) -> None:
    with _writing:
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def send(message: Any) -> None:
    put(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def say(text: str) -> None:
    os.write(2, text.encode() + b"\n")


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": False}


def answer(id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def answer_line(id: Any, text: str) -> bytes:
    return json.dumps(answer(id, text_result(text))).encode() + b"\n"


# Faults: each takes the id of the call and its arguments, and sends what it likes.


def echo(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, text_result(str(given.get("text", "")))))


def send_done(id: Any) -> None:
    send(answer(id, text_result("done")))


def sleep(id: Any, given: dict[str, Any]) -> None:
    if not _cancelled[id].wait(float(given.get("seconds", 1))):
        send(answer(id, text_result("slept")))


def pid(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, text_result(str(os.getpid()))))


def environ(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, text_result(json.dumps(dict(os.environ)))))


def cwd(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, text_result(os.getcwd())))


def heard(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, text_result(json.dumps(_heard))))


def forked(id: Any, given: dict[str, Any]) -> None:
    if not _forked:
        fork()
    send(answer(id, text_result(str(_forked[0].pid))))


def hang(id: Any, given: dict[str, Any]) -> None:
    return


def crash(id: Any, given: dict[str, Any]) -> None:
    say("fatal: this server has crashed")
    os._exit(int(given.get("status", 1)))


def half(id: Any, given: dict[str, Any]) -> None:
    line = answer_line(id, "half of this is never sent")
    put(line[: len(line) // 2])
    os._exit(1)


def closeout(id: Any, given: dict[str, Any]) -> None:
    os.close(1)


def deaf(id: Any, given: dict[str, Any]) -> None:
    send_done(id)
    while True:
        signal.pause()


def drip(id: Any, given: dict[str, Any]) -> None:
    seconds = given.get("seconds", 0.1)
    for byte in answer_line(id, "drop by drop"):
        if seconds is not None:
            time.sleep(float(seconds))
        elif byte == ord("\n"):
            _enough.wait()
        put(bytes([byte]))


def garbage(id: Any, given: dict[str, Any]) -> None:
    put(b'Server listening on stdio...\n{broken json\n[]\n42\nnull\n"text"\n\n{}\n\x00\x01\n')
    send_done(id)


def utf8bad(id: Any, given: dict[str, Any]) -> None:
    put(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\xff\xfe"}}\n')
    send_done(id)


def bignonl(id: Any, given: dict[str, Any]) -> None:
    chunk = b"x" * 1_048_576
    for _ in range(int(given.get("bytes", 200_000_000)) // len(chunk)):
        put(chunk)


def big(id: Any, given: dict[str, Any]) -> None:
    put(answer_line(id, "x" * int(given.get("bytes", 10_000_000))))


def deep(id: Any, given: dict[str, Any]) -> None:
    depth = int(given.get("depth", 100_000))
    put(b"[" * depth + b"]" * depth + b"\n")
    send_done(id)


def deepresult(id: Any, given: dict[str, Any]) -> None:
    depth = int(given.get("depth", 200))
    start = b'{"jsonrpc":"2.0","id":%s,"result":{"content":[],"structuredContent":{"a":' % json.dumps(id).encode()
    put(start + b"[" * depth + b"]" * depth + b"}}}\n")


def nullresult(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, None))


def noresult(id: Any, given: dict[str, Any]) -> None:
    send({"jsonrpc": "2.0", "id": id})


def textresult(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, "no object"))


def wrongid(id: Any, given: dict[str, Any]) -> None:
    for other in ("nobody-asked", 7, None, [id], {"id": id}):
        send(answer(other, text_result("for somebody else")))
    send_done(id)


def dup(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, text_result("first")))
    send(answer(id, text_result("second")))


def late(id: Any, given: dict[str, Any]) -> None:
    _cancelled[id].wait()
    send(answer(id, text_result("late")))


def batch(id: Any, given: dict[str, Any]) -> None:
    notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "in a batch"}}
    send([notice, 42, answer(id, text_result("done"))])


def crlf(id: Any, given: dict[str, Any]) -> None:
    put(b"\r\n  \r\n" + answer_line(id, "done").replace(b"\n", b"\r\n"))


def notifyflood(id: Any, given: dict[str, Any]) -> None:
    params = {"level": "info", "data": "flood " * 10}
    notice = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": params}).encode() + b"\n"
    if given.get("count") == 0:
        flood_until_enough(id, lambda _: put(notice))
        return
    for _ in range(int(given.get("count", 100_000)) // 100):
        put(notice * 100)
    send_done(id)


def stderrflood(id: Any, given: dict[str, Any]) -> None:
    if given.get("count") == 0:
        flood_until_enough(id, lambda number: say(f"flood line {number}"))
        return
    for number in range(int(given.get("count", 50_000))):
        say(f"flood line {number}")
    send_done(id)


def flood_until_enough(id: Any, put_one: Callable[[int], None]) -> None:
    number = 0
    while not _enough.is_set():
        put_one(number)
        number += 1
    send(answer(id, text_result(str(number))))


def stderrodd(id: Any, given: dict[str, Any]) -> None:
    os.write(2, b"\x1b[31mred\x1b[0m and\ttab\r\ninvalid \xff byte\n" + b"y" * 100_000 + b"\nwithout an end")
    send_done(id)


def secret(id: Any, given: dict[str, Any]) -> None:
    say(f"using key {os.environ.get('API_KEY', '')} for this")
    say("api_key=sk-SECRET123 Authorization: Bearer abc.DEF-123 password: hunter22")
    send_done(id)


def ignoreterm(id: Any, given: dict[str, Any]) -> None:
    MODES.add("ignoreterm")
    send_done(id)


def toolerror(id: Any, given: dict[str, Any]) -> None:
    send(answer(id, {"content": [{"type": "text", "text": "the tool said no"}], "isError": True}))


def rpcerror(id: Any, given: dict[str, Any]) -> None:
    send({"jsonrpc": "2.0", "id": id, "error": {"code": -32042, "message": "no", "data": {"why": "because"}}})


FAULTS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    fault.__name__: fault
    for fault in (
        echo, sleep, pid, environ, cwd, heard, forked, hang, crash, half, closeout, deaf, drip, garbage, utf8bad,
        bignonl, big, deep, deepresult, nullresult, noresult, textresult, wrongid, dup, late, batch, crlf, notifyflood,
        stderrflood, stderrodd, secret, ignoreterm, toolerror, rpcerror,
    )
}  # fmt: skip
IN_A_THREAD = {"sleep", "late", "drip", "bignonl", "big", "notifyflood", "stderrflood"}
"""Those that take a while: the server goes on with other calls meanwhile."""


def fork() -> None:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    # This one holds the pipes of the server open, as what a server starts usually does.
    holding = subprocess.Popen([sys.executable, "-c", STUBBORN.replace("print('up', flush=True)", "0")])
    _forked.extend((child, holding))


def tools() -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return [{"name": name, "description": f"The fault {name}", "inputSchema": schema} for name in FAULTS]


def list_tools(params: dict[str, Any]) -> dict[str, Any]:
    if "pages" in MODES:
        page = int(params.get("cursor", 0))
        entry = {"name": f"tool_{page}", "inputSchema": {"type": "object"}}
        return {"tools": [entry], "nextCursor": str(page + 1)}
    if "samepage" in MODES:
        return {"tools": tools()[:1], "nextCursor": "again"}
    if "badlist" in MODES:
        return {"tools": [42, None, "text", {}, {"name": 7}, {"name": ""}, *tools()]}
    return {"tools": tools()}


def initialize_result(params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("protocolVersion")
    version = "1999-01-01" if "wrongversion" in MODES else wanted if wanted in VERSIONS else VERSIONS[-1]
    capabilities = {"tools": {"listChanged": True}, "logging": {}}
    return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "bad", "version": "1"}}


def call(id: Any, params: dict[str, Any]) -> None:
    name, given = params.get("name"), params.get("arguments") or {}
    fault = FAULTS.get(name) if isinstance(name, str) else None
    if fault is None:
        send({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": f"Unknown tool: {name}"}})
        return
    _cancelled[id] = threading.Event()
    if name in IN_A_THREAD:
        threading.Thread(target=fault, args=(id, given), daemon=True).start()
    else:
        fault(id, given)


def take(message: dict[str, Any]) -> None:
    id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method is None:
        return
    _heard.append(method)
    if method == "notifications/enough":
        _enough.set()
    if method == "notifications/cancelled":
        event = _cancelled.get(params.get("requestId"))
        if event is not None:
            event.set()
    if id is None or "hang" in MODES or ("hanglist" in MODES and method.endswith("/list")):
        return
    if method == "initialize":
        send(answer(id, initialize_result(params)))
    elif method == "ping":
        send(answer(id, {}))
    elif method == "tools/list":
        send(answer(id, list_tools(params)))
    elif method == "tools/call":
        call(id, params)
    else:
        send({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}})


def main() -> None:
    if "exit" in MODES:
        say("boom: this server always crashes at start; api_key=sk-SECRET123")
        sys.exit(3)
    signal.signal(signal.SIGTERM, lambda *_: None if "ignoreterm" in MODES else os._exit(1 if EXIT_SECONDS else 0))
    if "fork" in MODES:
        fork()
    if "garbagefirst" in MODES:
        put(b"Welcome!\n{broken\n\xff\xfe\n")
    for line in sys.stdin.buffer:
        if line.strip():
            take(json.loads(line))
    while "ignoreterm" in MODES:
        signal.pause()
    time.sleep(EXIT_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main()
