"""A real authorization server on loopback: signs tokens, publishes its keys, and fails in the ways that such do."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.connections import closing

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

METADATA = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
KEYS = "/keys"
TOKEN = "/token"

CLIENT = "a-client"
SECRET = "the-secret-of-a-client"


@dataclass(frozen=True)
class SigningKey:
    """A key pair with its id."""

    id: str
    algorithm: str
    private: PrivateKey

    @classmethod
    def make(cls, id: str, algorithm: str = "ES256") -> SigningKey:
        """A new one for an algorithm."""
        private: PrivateKey
        if algorithm == "ES256":
            private = ec.generate_private_key(ec.SECP256R1())
        elif algorithm == "EdDSA":
            private = ed25519.Ed25519PrivateKey.generate()
        else:
            private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return cls(id, algorithm, private)

    def jwk(self) -> dict[str, Any]:
        """The public half, as it is published."""
        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            public = ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        elif isinstance(self.private, ed25519.Ed25519PrivateKey):
            public = OKPAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        else:
            public = RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "kid": self.id, "use": "sig", "alg": self.algorithm}


@dataclass
class AuthorizationServer:
    """It answers while it is up; what it answers can be changed at any time."""

    audience: str
    url: str = ""
    keys: list[SigningKey] = field(default_factory=lambda: [SigningKey.make("one")])
    pages: dict[str, Any] = field(default_factory=dict)
    """Answers in place of its own: JSON, bytes, or the status of an error."""
    headers: str = ""
    """Lines to add to each answer's headers."""
    asked: Counter[str] = field(default_factory=Counter)
    heads: list[str] = field(default_factory=list)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Until it is set, nothing is answered."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request comes in."""
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self.held.set()
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Be down: no connection is taken, and those that are open are cut."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.close()
            await self._server.wait_closed()
            self._server = None

    def hold(self) -> None:
        """Answer nothing from now on, until `held` is set."""
        self.held.clear()
        self.arrived.clear()

    def token(self, key: SigningKey | None = None, /, **claims: Any) -> str:
        """A signed token; a claim of None is left out."""
        key = key or self.keys[0]
        now = int(time.time())
        given = {"iss": self.url, "aud": self.audience, "sub": "ann", "iat": now, "exp": now + 600} | claims
        payload = {name: value for name, value in given.items() if value is not None}
        # Not by `jwt.encode`, which refuses to sign some of what a test needs.
        return jwt.PyJWS().encode(json.dumps(payload).encode(), key.private, key.algorithm, headers={"kid": key.id})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((line[15:] for line in head.lower().split("\r\n") if line.startswith("content-length:")), "0")
            body = (await reader.readexactly(int(length))).decode()
            path = head.split(" ", 2)[1]
            self.asked[path] += 1
            self.heads.append(head)
            self.arrived.set()
            await self.held.wait()
            await self._answer(writer, self.pages.get(path, self._own_page(path, body)))
        self._open.discard(writer)

    async def _answer(self, writer: asyncio.StreamWriter, page: Any) -> None:
        status = page if isinstance(page, int) else 200
        body = page if isinstance(page, bytes) else json.dumps(page).encode()
        elsewhere = f"location: {self.url}{KEYS}\r\n" if 300 <= status < 400 else ""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{elsewhere}{self.headers}"
        writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    def _own_page(self, path: str, body: str) -> Any:
        match path:
            case "/.well-known/oauth-authorization-server" | "/.well-known/openid-configuration":
                return self.metadata()
            case "/keys":
                return {"keys": [key.jwk() for key in self.keys]}
            case "/token":
                return self._grant({name: values[0] for name, values in parse_qs(body).items()})
            case _:
                return 404

    def metadata(self) -> dict[str, Any]:
        """What it says of itself."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}{TOKEN}",
            "jwks_uri": f"{self.url}{KEYS}",
            "response_types_supported": ["code"],
            "grant_types_supported": ["client_credentials"],
        }

    def _grant(self, asked: dict[str, str]) -> dict[str, Any]:
        """A token with the scopes that a client asks for."""
        token = self.token(aud=asked.get("resource"), sub=CLIENT, scope=asked.get("scope"))
        return {
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": 600,
            "scope": asked.get("scope", ""),
        }


@asynccontextmanager
async def authorization_server(audience: str = "https://desk.example/mcp") -> AsyncIterator[AuthorizationServer]:
    """One that is up."""
    server = AuthorizationServer(audience)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"x" * 64) -> str:
    """A token that nobody has signed."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
