"""What both programs share: an HTTP/1.1 server with keep-alive, one thread per connection, JSON in and out."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BODY_BYTES = 64 * 1024


class Refused(Exception):
    """A request that is answered with a status and a reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Subclasses define `answer(method, path, body)` and send exactly one response."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one segment

    def do_GET(self):
        self._serve("GET")

    def do_POST(self):
        self._serve("POST")

    def do_DELETE(self):
        self._serve("DELETE")

    def _serve(self, method):
        try:
            self.answer(method, self.path.partition("?")[0], self._body())
        except Refused as refused:
            self.send_json(refused.status, {"error": str(refused)})
        except ValueError as error:  # a malformed chunk: where the next request starts is unknown
            self.close_connection = True
            self.send_json(400, {"error": f"malformed request: {error}"})

    def _body(self):
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return self._chunks()
        length = self.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise Refused(413, f"a body has at most {MAX_BODY_BYTES} bytes")
        return self.rfile.read(int(length))

    def _chunks(self):
        """A chunked body (RFC 9112, section 7.1), without its trailers."""
        body = b""
        while size := int(self.rfile.readline(64).partition(b";")[0] or b"0", 16):
            if len(body) + size > MAX_BODY_BYTES:
                self.close_connection = True
                raise Refused(413, f"a body has at most {MAX_BODY_BYTES} bytes")
            body += self.rfile.read(size)
            self.rfile.readline(64)
        while self.rfile.readline(1024).strip():
            pass
        return body

    def send_json(self, status, value, headers=()):
        self.send(status, "application/json", json.dumps(value, ensure_ascii=False).encode() + b"\n", headers)

    def send(self, status, content_type, body, headers=()):
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def read_json(body):
    """The JSON object in a request's body."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    return value


def serve(handler):
    """Serves on $PORT (8080) until SIGTERM."""
    port = int(os.environ.get("PORT", "8080"))
    server = Server(("0.0.0.0", port), handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"listening on port {port}", flush=True)
    server.serve_forever()
