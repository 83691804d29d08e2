"""One call of a tool over Streamable HTTP: mcp_call.py URL TOOL [ARGUMENTS] prints its text."""

import json
import sys
import urllib.request

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def post(url, headers, message):
    request = urllib.request.Request(url, json.dumps(message).encode(), {**HEADERS, **headers})
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read().decode()
        if "event-stream" in (response.headers["Content-Type"] or ""):
            data = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
            text = next(one for one in data if one and "id" in json.loads(one) and "method" not in json.loads(one))
        return response.headers, json.loads(text) if text else None


def call(url, tool, arguments):
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "check", "version": "1"}}
    headers, _ = post(url, {}, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client})
    session = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
    post(url, session, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    params = {"name": tool, "arguments": arguments}
    _, answer = post(url, session, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
    return answer["result"]["content"][0]["text"]


if __name__ == "__main__":
    print(call(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}))
