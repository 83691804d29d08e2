"""An MCP server on stdio that says when it read `initialize`: monotonic time, which is the machine's."""

import json
import sys
import time

for line in sys.stdin:
    now = time.monotonic_ns()
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    result = {}
    if message["method"] == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {},
            "serverInfo": {"name": "stamp", "version": str(now)},
        }
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
