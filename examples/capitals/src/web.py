"""capitals-web: a page, and a JSON API that passes questions on to capitals-info.

GET  /                            the page
GET  /api/capitals[/{country}]    from capitals-info
POST /api/capitals                to capitals-info
GET  /api/identity                who capitals-info says is calling it
"""

import http.client
import os
import threading
from urllib.parse import urlsplit

from server import Handler, Refused, serve

INFO = urlsplit(os.environ.get("INFO_URL", "http://capitals-info:8080"))
TIMEOUT_SECONDS = 5
# What a program in a mesh hands on: the caller's wishes and the trace its call belongs to.
PASSED_ON = ["x-pin", "x-request-id", "traceparent", "tracestate", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled"]
PASSED_BACK = ["x-version"]

with open(os.path.join(os.path.dirname(__file__), "index.html"), "rb") as file:
    PAGE = file.read()

_local = threading.local()


def connection():
    """This thread's connection to capitals-info, kept alive between requests."""
    if not hasattr(_local, "connection"):
        _local.connection = http.client.HTTPConnection(INFO.hostname, INFO.port or 80, timeout=TIMEOUT_SECONDS)
    return _local.connection


def call_info(method, path, body, headers):
    """One exchange. A kept-alive connection may have been closed meanwhile: then once more on a new one, if that is safe."""
    upstream = connection()
    reused = upstream.sock is not None
    try:
        upstream.request(method, path, body=body or None, headers=headers)
        response = upstream.getresponse()
        return response, response.read()
    except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError) as error:
        upstream.close()
        if reused and method == "GET":
            return call_info(method, path, body, headers)
        raise Refused(502, f"capitals-info does not answer: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        upstream.close()
        raise Refused(502, f"capitals-info does not answer: {error}") from None


class Web(Handler):
    server_version = "capitals-web/1"

    def answer(self, method, path, body):
        if path.startswith("/api/"):
            self.ask_info(method, path.removeprefix("/api"), body)
        elif method != "GET":
            raise Refused(405, "only GET is served here")
        elif path == "/":
            self.send(200, "text/html; charset=utf-8", PAGE)
        elif path == "/healthz":
            self.send_json(200, {"status": "ok"})
        else:
            raise Refused(404, f"nothing here: {path}")

    def ask_info(self, method, path, body):
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        if body:
            headers["content-type"] = self.headers.get("content-type", "application/json")
        response, answer = call_info(method, path, body, headers)
        back = [(name, response.headers[name]) for name in PASSED_BACK if name in response.headers]
        self.send(response.status, response.headers.get("content-type", "text/plain"), answer, back)


if __name__ == "__main__":
    serve(Web)
