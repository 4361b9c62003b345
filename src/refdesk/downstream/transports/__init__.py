"""The ways to a server: standard input and output, Streamable HTTP, SSE, WebSocket."""
