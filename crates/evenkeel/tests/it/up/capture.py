# Reads what arrives at a port of this network namespace, and tells of each connection whether it is TLS: from the bytes on
# the wire alone. Prints `capturing` when it has begun, and what it has seen as JSON when standard input ends.
import json, select, socket, struct, sys

port = int(sys.argv[1])
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
connections = {}


def read(frame):
    if frame[12:14] != b'\x08\x00' or frame[23] != 6:
        return
    length = struct.unpack('!H', frame[16:18])[0]
    ip = frame[14:14 + length]
    tcp = ip[(ip[0] & 15) * 4:]
    source, destination, sequence = struct.unpack('!HHI', tcp[:8])
    data, flags = tcp[(tcp[12] >> 4) * 4:], tcp[13]
    peers = (socket.inet_ntoa(ip[12:16]), source), (socket.inet_ntoa(ip[16:20]), destination)
    if destination == port:
        key, side = peers, 0
    elif source == port:
        key, side = (peers[1], peers[0]), 1
    else:
        return
    if flags & 2:
        connections.setdefault(key, [{}, {}, [None, None]])[2][side] = sequence + 1
    known = connections.get(key)
    if known and data and known[2][side] is not None:
        known[side][(sequence - known[2][side]) & 0xffffffff] = bytes(data)


def joined(pieces):
    out = b''
    for at in sorted(pieces):
        if at <= len(out):
            out += pieces[at][len(out) - at:]
    return out


def hello(stream):
    # The first handshake message, over as many records as it takes.
    message = b''
    while len(stream) >= 5 and stream[0] == 22:
        length = struct.unpack('!H', stream[3:5])[0]
        message += stream[5:5 + length]
        stream = stream[5 + length:]
    return message


def extensions(message, is_client):
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + struct.unpack('!H', message[at:at + 2])[0] if is_client else 2
    at += 1 + message[at] if is_client else 1
    end = at + 2 + struct.unpack('!H', message[at:at + 2])[0]
    at += 2
    found = {}
    while at + 4 <= min(end, len(message)):
        kind, length = struct.unpack('!HH', message[at:at + 4])
        found[kind] = message[at + 4:at + 4 + length]
        at += 4 + length
    return found


def told(key, known):
    asked, answered = joined(known[0]), joined(known[1])
    one = {'client': key[0][0], 'server': key[1][0], 'tls': asked[:1] == b'\x16', 'bytes': len(asked) + len(answered)}
    if one['tls']:
        client = extensions(hello(asked), True)
        server = extensions(hello(answered), False) if answered[:1] == b'\x16' else {}
        one['sni'] = client[0][5:].decode() if 0 in client else None
        one['version'] = {b'\x03\x04': 'TLSv1.3', b'\x03\x03': 'TLSv1.2'}.get(server.get(43, b'\x03\x03'))
        one['group'] = struct.unpack('!H', server[51][:2])[0] if 51 in server else None
    else:
        one['begins'] = asked[:16].decode('latin-1')
    return one


print('capturing', flush=True)
while True:
    ready, _, _ = select.select([packets, sys.stdin], [], [])
    if packets in ready:
        frame, address = packets.recvfrom(65536)
        # What the application says to itself does not leave this namespace.
        if address[0] != 'lo':
            read(frame)
    elif sys.stdin in ready:
        break
print(json.dumps([told(key, known) for key, known in connections.items() if known[0]]))
