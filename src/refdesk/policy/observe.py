"""One log line and one set of measurements for every call, however it ends. Argument values are never written."""

from __future__ import annotations

from asyncio import CancelledError
from time import perf_counter

from refdesk.calls import Answer, Call, Handler, InputRequired
from refdesk.errors import MethodNotFound, RefdeskError, UnknownTool
from refdesk.telemetry import Log, Metrics


class Observe:
    """The outermost policy: it sees every outcome, refusals included."""

    def __init__(self, log: Log, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        started = perf_counter()
        method, target = call.method, call.target
        tool = target if method == "tools/call" else ""
        outcome = "internal_error"
        try:
            answer = await proceed(call)
            outcome = "tool_error" if answer.is_error else "ok"
            return answer
        except RefdeskError as error:
            outcome = type(error).__name__
            # A name that somebody made up must not become a label.
            method = "" if isinstance(error, MethodNotFound) else method
            tool = "" if isinstance(error, UnknownTool) else tool
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
