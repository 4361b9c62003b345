"""FastMCP's proxy over a file with `mcpServers`, as its documentation makes one. Arguments: the file, the port."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fastmcp.server import create_proxy

if __name__ == "__main__":
    proxy = create_proxy(json.loads(Path(sys.argv[1]).read_text("utf-8")), name="proxy")
    proxy.run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False, log_level="warning")
