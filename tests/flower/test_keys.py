"""Certificates that are valid on this machine only, and keys that only the owner can read."""

import contextlib
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from feddm.flower.keys import DAYS, certificates, make_node_key

Files = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return certificates(tmp_path_factory.mktemp("certificates"))


def greeting(server: Files, authority: Path | None, name: str) -> bytes:
    """Returns what a server on loopback sends to a client that trusts an authority."""
    _, certificate, key = server
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(certificate, key)
    here = ssl.create_default_context(cafile=authority)
    here.verify_flags |= ssl.VERIFY_X509_STRICT  # the default in newer versions of Python
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                connection.settimeout(10)
                with there.wrap_socket(connection, server_side=True) as safe:
                    safe.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), 10) as connection,
                here.wrap_socket(connection, server_hostname=name) as safe,
            ):
                return safe.recv(5)
        finally:
            thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_certificate_is_valid_for_this_machine(files: Files, name: str) -> None:
    assert greeting(files, files[0], name) == b"hello"


def test_it_is_valid_for_no_other_name(files: Files) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        greeting(files, files[0], "example.org")


def test_it_is_not_valid_under_another_authority(files: Files, tmp_path: Path) -> None:
    # Another authority has the same name but another key.
    other, _, _ = certificates(tmp_path)
    for authority in (other, None):
        with pytest.raises(ssl.SSLCertVerificationError):
            greeting(files, authority, "localhost")


def test_a_server_certificate_cannot_sign_others(files: Files) -> None:
    authority, server = (x509.load_pem_x509_certificate(f.read_bytes()) for f in files[:2])
    for certificate, may in ((authority, True), (server, False)):
        extensions = certificate.extensions
        assert extensions.get_extension_for_class(x509.BasicConstraints).value.ca is may
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        assert usage.key_cert_sign is may
        lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert DAYS <= lasts.days <= DAYS + 1
    server.verify_directly_issued_by(authority)


def test_the_key_of_the_authority_is_not_stored(files: Files) -> None:
    folder = files[0].parent
    assert {path.name for path in folder.iterdir()} == {"ca.crt", "server.crt", "server.key"}
    authority = x509.load_pem_x509_certificate(files[0].read_bytes())
    key = serialization.load_pem_private_key(files[2].read_bytes(), None)
    assert authority.public_key() != key.public_key()


def test_only_the_owner_can_read_keys(files: Files, tmp_path: Path) -> None:
    private, public = make_node_key(tmp_path / "node")
    for file in (files[2], private):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert public == tmp_path / "node.pub"


def test_a_node_key_is_of_the_type_flower_needs(tmp_path: Path) -> None:
    private, public = make_node_key(tmp_path / "node")
    key = serialization.load_ssh_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"
    assert serialization.load_ssh_public_key(public.read_bytes()) == key.public_key()


def test_existing_certificates_are_reused(tmp_path: Path) -> None:
    before = [file.read_bytes() for file in certificates(tmp_path)]
    assert [file.read_bytes() for file in certificates(tmp_path)] == before


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    private, _ = make_node_key(tmp_path / "node")
    before = private.read_bytes()
    with pytest.raises(FileExistsError):
        make_node_key(tmp_path / "node")
    assert private.read_bytes() == before
