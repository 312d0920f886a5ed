"""A server whose paths fail in many ways, and its client, which makes one call for each argument: `ID HOST:PORT/PATH`."""

import http.server, socket, struct, sys, threading, time


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self):
        path = self.path.split('?')[0]
        if path.startswith('/slow'):
            time.sleep(0.6)
        if path == '/reset':
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        body = b'x' * (32 << 20) if path == '/large' else b'hello'
        self.send_response(500 if path.startswith('/error') else 200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def get(id, to):
    authority, path = to.split('/', 1)
    host, port = authority.split(':')
    with socket.create_connection((host, int(port)), 20) as stream:
        token = 'authorization: Bearer none.none.none\r\n' if path == 'token' else ''
        head = f'GET /{path} HTTP/1.1\r\nhost: {authority}\r\nx-request-id: {id}\r\n{token}connection: close\r\n\r\n'
        stream.sendall(head.encode())
        if path == 'slow-leave':
            time.sleep(0.2)
            return
        if path == 'large':
            time.sleep(1.5)
        try:
            first = stream.recv(65536)
            print(id, to, first.split(b'\r\n')[0].decode(), flush=True)
            while stream.recv(1 << 20):
                pass
        except OSError as error:
            print(id, to, error, flush=True)


if sys.argv[1:] == ['serve']:
    http.server.ThreadingHTTPServer(('', 8000), Server).serve_forever()
elif sys.argv[1] == 'at-once':
    calls = [threading.Thread(target=get, args=call.split(' ')) for call in sys.argv[2:]]
    for call in calls:
        call.start()
        time.sleep(0.03)
    for call in calls:
        call.join()
else:
    for call in sys.argv[1:]:
        get(*call.split(' '))
