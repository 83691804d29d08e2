"""An MCP server over stdio for the rolling upgrade: each call sends its number as a log message, which has to
arrive at the stream of its session, and answers it. `wait` is how many milliseconds the call takes."""

import json
import sys
import threading

lock = threading.Lock()


def send(message):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(message):
    arguments = message["params"]["arguments"]
    number = arguments["number"]
    send({"method": "notifications/message", "params": {"level": "info", "data": number}})

    def answer():
        send({"id": message["id"], "result": {"content": [{"type": "text", "text": str(number)}]}})

    # In a thread, so that a call that takes long does not hold up the others.
    threading.Timer(arguments.get("wait", 0) / 1000, answer).start()


for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        send({"id": message["id"], "result": {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "counter", "version": "1"},
        }})
    elif method == "tools/call":
        call(message)
    elif method == "tools/list":
        tool = {"name": "count", "inputSchema": {"type": "object"}}
        send({"id": message["id"], "result": {"tools": [tool]}})
    elif "id" in message and method:
        send({"id": message["id"], "result": {}})
