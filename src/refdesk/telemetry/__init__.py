"""Logging, metrics, traces and error reports.

Telemetry never fails or delays a call: what can't be written, counted or sent is dropped.
"""

from refdesk.telemetry.extras import open_reports, open_spans
from refdesk.telemetry.log import Log, iter_secrets
from refdesk.telemetry.metrics import Metrics
from refdesk.telemetry.traces import Trace, enter_trace, leave_trace, outgoing_headers, read_trace, set_current_span

__all__ = [
    "Log",
    "Metrics",
    "Trace",
    "enter_trace",
    "iter_secrets",
    "leave_trace",
    "open_reports",
    "open_spans",
    "outgoing_headers",
    "read_trace",
    "set_current_span",
]
