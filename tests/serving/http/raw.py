"""HTTP by hand, over a plain socket: what no polite client would send."""

import json
import socket


def connect(server, timeout_s=10.0):
    return socket.create_connection(("127.0.0.1", server.port), timeout_s)


def request(method, path, body=b"", headers=(), host="127.0.0.1", length=None):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    names = {name.lower() for name, _ in headers}
    if body or length is not None:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
        if "content-type" not in names:
            lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def exchange(server, data, timeout_s=10.0):
    """Everything that comes back until the server closes; the request should ask for that."""
    with connect(server, timeout_s) as one:
        one.sendall(data)
        return read_all(one)


def read_all(one):
    parts = []
    while True:
        try:
            part = one.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


class Answer:
    def __init__(self, data):
        head, _, self.body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    def json(self):
        return json.loads(self.body)


def ask(server, method, path, body=None, headers=(), **more):
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    data = request(method, path, raw, [*headers, ("Connection", "close")], **more)
    return Answer(exchange(server, data))
