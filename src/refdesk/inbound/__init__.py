"""Inbound transports: HTTP and stdio requests become calls, answers and errors become responses."""
