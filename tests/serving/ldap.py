"""An LDAP server that knows one user: as much of RFC 4511 as a simple bind takes."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

USER, PASSWORD = "ada", "correct-horse"
_NAME = f"uid={USER},ou=people".encode()
_SUCCESS, _INVALID_CREDENTIALS = 0, 49
_SEQUENCE, _BIND, _SIMPLE = 0x30, 0x60, 0x80


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while head := self.rfile.read(2):
            assert head[0] == _SEQUENCE
            message = _fields(self.rfile.read(self._length(head[1])))
            if len(message) < 2 or message[1][0] != _BIND:  # unbind
                return
            _, name, password = _fields(message[1][1])
            is_known = (name[1], password) == (_NAME, (_SIMPLE, PASSWORD.encode()))
            code = _SUCCESS if is_known else _INVALID_CREDENTIALS
            body = bytes([0x02, len(message[0][1]), *message[0][1], 0x61, 7, 0x0A, 1, code, 0x04, 0, 0x04, 0])
            self.wfile.write(bytes([_SEQUENCE, len(body), *body]))

    def _length(self, first: int) -> int:
        return first if first < 128 else int.from_bytes(self.rfile.read(first - 128), "big")


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each element (BER)."""
    found, at = [], 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length > 127:
            size = length - 128
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        found.append((tag, data[at : at + length]))
        at += length
    return found


@contextmanager
def ldap_server() -> Iterator[str]:
    """Its URL, while it runs."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"ldap://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
