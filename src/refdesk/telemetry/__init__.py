"""Logging, metrics, traces and error reports.

Telemetry never fails or delays a call: what can't be written, counted or sent is dropped.
"""

from refdesk.telemetry.log import Log as Log
