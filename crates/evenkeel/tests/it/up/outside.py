"""What a machine reaches, for the tests of the way out: everything is in the network of the test's own machine."""

import socket, ssl, struct, sys, threading

FOLDER = sys.argv[1]
OUTSIDE, OTHER = '203.0.113.10', '203.0.113.11'


def listen(address, serve):
    listener = socket.create_server(address, backlog=64)

    def run():
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=serve, args=(stream,), daemon=True).start()

    threading.Thread(target=run, daemon=True).start()


def http(name):
    def serve(stream):
        with stream:
            head = b''
            while b'\r\n\r\n' not in head:
                more = stream.recv(4096)
                if not more:
                    return
                head += more
            body = name.encode()
            stream.sendall(b'HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s' % (len(body), body))

    return serve


def https(name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FOLDER + '/cert.pem', FOLDER + '/key.pem')

    def serve(stream):
        try:
            http(name)(context.wrap_socket(stream, server_side=True))
        except OSError:
            pass

    return serve


def tcp(stream):
    # Answers when the other half is closed: half-closed connections have to pass.
    with stream:
        said = b''
        while more := stream.recv(65536):
            said += more
        stream.sendall(b'%d bytes' % len(said))


def resolve(query, over_tcp):
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode().lower())
        at += query[at] + 1
    name, kind = '.'.join(labels), struct.unpack('!H', query[at + 1:at + 3])[0]
    known = {'web.corp': [OUTSIDE], 'rr.corp': [OUTSIDE, OTHER], 'tls.corp': [OUTSIDE], 'origin.corp': [OUTSIDE],
             'tcp.corp': [OUTSIDE], 'rebind.corp': ['10.244.0.2'], 'passes.corp': [OUTSIDE], 'big.corp': [OTHER], 'only-searched.lan': [OUTSIDE]}
    with open(FOLDER + '/asked', 'a') as asked:
        asked.write(name + '\n')
    code, flags, addresses = 0, 0x8180, []
    if name == 'broken.corp':
        code = 2
    elif name not in known:
        code = 3
    elif name == 'big.corp' and not over_tcp:
        flags |= 0x0200
    elif kind == 1:
        addresses = known[name]
    question = query[12:at + 5]
    answers = b''.join(b'\xc0\x0c' + struct.pack('!HHIH', 1, 1, 5, 4) + socket.inet_aton(a) for a in addresses)
    return query[:2] + struct.pack('!HHHHH', flags | code, 1, len(addresses), 0, 0) + question + answers


def dns_over_tcp(stream):
    with stream:
        while length := stream.recv(2, socket.MSG_WAITALL):
            answer = resolve(stream.recv(struct.unpack('!H', length)[0], socket.MSG_WAITALL), True)
            stream.sendall(struct.pack('!H', len(answer)) + answer)


def dns_over_udp():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(('127.0.0.53', 53))
    while True:
        query, peer = server.recvfrom(4096)
        server.sendto(resolve(query, False), peer)


listen(('127.0.0.1', 7001), http('machine'))
listen(('127.0.0.1', 7002), http('named machine'))
listen((OUTSIDE, 80), http('outside'))
listen((OTHER, 80), http('other'))
listen((OUTSIDE, 443), https('outside over TLS'))
listen((OUTSIDE, 9000), tcp)
listen(('127.0.0.53', 53), dns_over_tcp)
threading.Thread(target=dns_over_udp, daemon=True).start()
open(FOLDER + '/ready', 'w').close()
threading.Event().wait()
