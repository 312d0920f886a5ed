"""Calls that a program in the mesh makes, one line for each: what it asked for, and what it saw."""

import errno, http.client, socket, ssl, struct, sys


def get(to, path='/', host=None, tls=False):
    name, port = to.rsplit(':', 1)
    connection = http.client.HTTPConnection(name, int(port), timeout=20)
    if tls:
        context = ssl._create_unverified_context()
        connection.sock = context.wrap_socket(socket.create_connection((name, int(port)), 20), server_hostname=name)
    connection.request('GET', path, headers={'host': host or to})
    answer = connection.getresponse()
    body = answer.read().decode()
    return body.strip() if answer.status == 200 else str(answer.status)


def tcp(to):
    name, port = to.rsplit(':', 1)
    with socket.create_connection((name, int(port)), 20) as stream:
        stream.sendall(b'x' * 300000)
        stream.shutdown(socket.SHUT_WR)
        said = b''
        while more := stream.recv(4096):
            said += more
        return said.decode() or 'cut off'


def named(to):
    """At an address, under a host's name: `HOST@ADDRESS:PORT`."""
    host, address = to.split('@')
    return get(address, host=host)


def both(to):
    seen = set()
    for _ in range(200):
        seen.add(get(to))
        if len(seen) == 2:
            break
    return ' and '.join(sorted(seen))


def name(host):
    return socket.gethostbyname(host)


def address(ip):
    return socket.gethostbyaddr(ip)[0]


def srv(host):
    """The first SRV record (RFC 2782): its port, and whether it is the only one."""
    server = [line.split()[1] for line in open('/etc/resolv.conf') if line.startswith('nameserver')][0]
    labels = b''.join(bytes([len(label)]) + label.encode() for label in host.split('.'))
    question = labels + b'\0' + struct.pack('!HH', 33, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
        stream.settimeout(20)
        stream.sendto(struct.pack('!HHHHHH', 7, 0x100, 1, 0, 0, 0) + question, (server, 53))
        answer = stream.recv(4096)
    _, flags, _, count, _, _ = struct.unpack('!HHHHHH', answer[:12])
    if not count:
        return f'none, code {flags & 15}'
    # After the name, a pointer to that of the question.
    port = struct.unpack('!H', answer[12 + len(question) + 16:][:2])[0]
    return f'{count} at port {port}'


def udp(to):
    host, port = to.rsplit(':', 1)
    socket_ = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    socket_.settimeout(20)
    socket_.connect((host, int(port)))
    socket_.send(b'x')
    return socket_.recv(100).decode()


for call in sys.argv[1:]:
    kind, to, *host = call.split(' ')
    try:
        kinds = {'get': lambda to: get(to, host=(host or [None])[0]), 'tls': lambda to: get(to, tls=True), 'tcp': tcp,
                 'both': both, 'as': named, 'name': name, 'udp': udp, 'address': address, 'srv': srv}
        seen = kinds[kind](to)
    except (socket.gaierror, socket.herror) as error:
        seen = {socket.EAI_NONAME: 'no such name', 1: 'no such name', socket.EAI_AGAIN: 'try again'}.get(error.errno, str(error))
    except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected, ssl.SSLError):
        seen = 'cut off'
    except OSError as error:
        # ENOTCONN: the reset has come before this end was to be shut.
        seen = 'cut off' if error.errno == errno.ENOTCONN else error.strerror or type(error).__name__
    print(f'{call}: {seen}', flush=True)
