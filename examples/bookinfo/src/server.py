"""What the four programs share: an HTTP/1.1 server, calls of each other, JSON in and out."""

import http.client
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(os.environ.get("PORT", "9080"))
TIMEOUT_SECONDS = 3
# What a program in a mesh hands on: who asks, and the trace its call belongs to.
PASSED_ON = ["end-user", "x-request-id", "traceparent", "tracestate", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled", "user-agent"]


class Handler(BaseHTTPRequestHandler):
    """Subclasses define `answer(path)` for GETs, and send exactly one response."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one segment

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == "/health":
            self.send_json(200, {"status": "healthy"})
        else:
            self.answer(path)

    def passed_on(self):
        return {name: self.headers[name] for name in PASSED_ON if name in self.headers}

    def send_json(self, status, value):
        self.send_bytes(status, "application/json", json.dumps(value).encode() + b"\n")

    def send_bytes(self, status, content_type, body, headers=()):
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def call(host, path, headers):
    """The status and the JSON another program answers with; (None, reason) without an answer."""
    connection = http.client.HTTPConnection(host, PORT, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if response.status == 200 else body.decode(errors="replace").strip()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return None, str(error)
    finally:
        connection.close()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def serve(handler):
    """Serves until SIGTERM."""
    server = Server(("0.0.0.0", PORT), handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"listening on port {PORT}", flush=True)
    server.serve_forever()
