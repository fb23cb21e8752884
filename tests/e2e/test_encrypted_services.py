"""The guide about TLS to NATS and PostgreSQL is followed to the letter, with real servers on both ends.

Only ports, and the directory that files are in, are those of the test. A PostgreSQL that was built without TLS, as the
one of our development packages is, gets a proxy in front that speaks it in its place, with the guide's certificates.
"""

import asyncio
import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from corral.base.errors import CorralError
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.server import find_nats_server
from corral.frontend.store.db import Database
from tests.e2e.test_docs_commands import ROOT, blocks
from tests.kit.ports import lasting_port
from tests.kit.postgres import PostgresServer
from tests.kit.postgres_binaries import find_binaries
from tests.kit.waiting import eventually

GUIDE = ROOT / "docs" / "guides" / "encrypt-everything.md"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of the guide make."""
    folder = tmp_path_factory.mktemp("certificates")
    (script,) = [block for block in blocks(GUIDE, "sh") if "issue()" in block]
    done = subprocess.run(["sh", "-e"], input=script, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def variables(word: str, folder: Path) -> dict[str, str]:
    """The variables that a block of the guide exports, with full paths."""
    (script,) = [block for block in blocks(GUIDE, "sh") if word in block]
    values = dict(re.findall(r"(CORRAL_\w+)='?([^\s']+)", script))
    return {name: re.sub(r"\b(\w+\.(?:pem|key))\b", rf"{folder}/\1", value) for name, value in values.items()}


@contextmanager
def nats(certificates: Path, port: int) -> Iterator[None]:
    """A server with the file of the guide."""
    (written,) = blocks(GUIDE, "nats")
    file = certificates / "nats.conf"
    file.write_text(written.replace("4222", str(port)))
    server = subprocess.Popen([find_nats_server(), "-c", file], cwd=certificates, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


async def is_let_in(port: int, context: ssl.SSLContext) -> bool:
    """Whether a client with this context gets an answer beyond the handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.readline()  # the server says that it wants TLS
        await writer.start_tls(context, server_hostname="127.0.0.1")
        writer.write(b'CONNECT {"verbose":true}\r\n')
        return await reader.readline() == b"+OK\r\n"
    except OSError:
        return False
    finally:
        writer.transport.abort()


async def test_nats_knows_its_clients_and_they_know_it(certificates: Path) -> None:
    port, settings = lasting_port(), variables("CORRAL_NATS_URL", certificates)
    authority, certificate, key = (Path(settings[f"CORRAL_NATS_TLS_{word}"]) for word in ("CA", "CERT", "KEY"))
    url = settings["CORRAL_NATS_URL"].replace("4222", str(port))
    config = BusConfig(url=url, tls_ca=authority, tls_cert=certificate, tls_key=key)
    with nats(certificates, port):
        async with NatsBus(config, name="frontend") as bus:

            async def is_connected() -> bool:
                return bus.connected

            await eventually(is_connected, "the connection with a certificate")
        member, stranger = (ssl.create_default_context(cafile=authority) for _ in range(2))
        member.load_cert_chain(certificate, key)
        assert await is_let_in(port, member)
        assert not await is_let_in(port, stranger)


def speaks_tls() -> bool:
    """Whether the PostgreSQL of this machine was built with TLS."""
    asked = subprocess.run([find_binaries() / "pg_config", "--configure"], capture_output=True, text=True, check=False)
    return "openssl" in asked.stdout


def postgres(certificates: Path, *, with_tls: bool) -> PostgresServer:
    """A server with the guide's lines for its two files, where it speaks TLS itself."""
    server = PostgresServer()
    if not with_tls:
        return server
    (lines,), (rule,) = blocks(GUIDE, "ini"), blocks(GUIDE, "hba")
    settings = dict(re.findall(r"^(\w+) = '?([\w.]+)", lines, re.MULTILINE))
    files = {value: (certificates / value).read_text() for value in settings.values() if value != "on"}
    files["pg_hba.conf"] = f"host postgres all 127.0.0.1/32 scram-sha-256\n{rule}"  # the first for the test itself
    paths = {name: value if value == "on" else str(server.folder / value) for name, value in settings.items()}
    server.configure(paths | {"hba_file": str(server.folder / "pg_hba.conf")}, files)
    return server


@asynccontextmanager
async def tls_in_front(certificates: Path, server: PostgresServer) -> AsyncIterator[int]:
    """What PostgreSQL does at the start of a connection with TLS, for one that cannot; yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates / "authority.pem")
    context.load_cert_chain(certificates / "postgres.pem", certificates / "postgres.key")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(8)  # the request for TLS
            writer.write(b"S")
            await writer.start_tls(context)
            inner = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


@pytest.mark.parametrize("with_tls", [False, *([True] if speaks_tls() else [])], ids=lambda built: f"built-in={built}")
async def test_postgresql_knows_its_clients_and_they_know_it(certificates: Path, with_tls: bool) -> None:
    with postgres(certificates, with_tls=with_tls) as server:
        server.create_database("corral")  # the kit's administrator has the name that the guide's user has
        url = variables("CORRAL_DATABASE", certificates)["CORRAL_DATABASE"].replace("choose-one", server.password)
        async with AsyncExitStack() as stack:
            port = server.port
            if not with_tls:
                port = await stack.enter_async_context(tls_in_front(certificates, server))
            url = url.replace(":5432/", f":{port}/")
            database = await Database.open(url)
            await database.close()
            for lacking in (re.sub(r"&sslcert=.*", "", url), url.replace("sslrootcert=", "sslrootcert=/none")):
                with pytest.raises(CorralError):
                    await Database.open(lacking)
