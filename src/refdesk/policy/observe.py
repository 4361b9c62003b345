"""One log line and one set of measurements for every call, however it ends. Argument values are never written."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Container
from time import perf_counter

from refdesk.calls import Answer, Call, Handler, InputRequired
from refdesk.errors import MethodNotFound, RefdeskError
from refdesk.telemetry import Log, Metrics


class Observe:
    """The outermost policy: it sees every outcome, refusals included."""

    def __init__(self, log: Log, metrics: Metrics, tools: Container[str]) -> None:
        self._log = log
        self._tools = tools
        self._metrics = metrics

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        started = perf_counter()
        method, target = call.method, call.target
        # A name that somebody made up must not become a label.
        tool = target if method == "tools/call" and target in self._tools else ""
        outcome = "internal_error"
        try:
            answer = await proceed(call)
            outcome = "tool_error" if answer.is_error else "ok"
            return answer
        except RefdeskError as error:
            outcome = type(error).__name__
            method = "" if isinstance(error, MethodNotFound) else method
            raise
        except InputRequired:
            outcome = "input_required"
            raise
        except CancelledError:
            outcome = "cancelled"
            raise
        finally:
            seconds = perf_counter() - started
            self._metrics.call_finished(method, tool, outcome, seconds)
            self._log.call(call, target, outcome, seconds)
