"""Certificates and keys for a trial deployment on one machine."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from feddm.core import files

DAYS = 30  # validity of a certificate


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Makes an authority and a certificate that is valid on this machine only.

    Existing files are reused. The authority's key is not stored, so that it can never sign
    anything else.

    Returns:
        The files of the authority's certificate, the server's certificate and its key.
    """
    made = folder / "ca.crt", folder / "server.crt", folder / "server.key"
    if all(file.exists() for file in made):
        return made
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _certificate("feddm on this machine", authority_key, None, authority_key)
    server = _certificate("localhost", server_key, authority, authority_key)
    pem = serialization.Encoding.PEM
    files.write(made[0], authority.public_bytes(pem))
    files.write(made[1], server.public_bytes(pem))
    pkcs8 = serialization.PrivateFormat.PKCS8
    files.write(made[2], _private_pem(server_key, pkcs8), files.OWNER)
    return made


def make_node_key(path: Path) -> tuple[Path, Path]:
    """Makes a key pair for a node and returns its private and its public file."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = path.with_name(f"{path.name}.pub")
    files.write(path, _private_pem(key, serialization.PrivateFormat.OpenSSH), files.OWNER)
    openssh = serialization.PublicFormat.OpenSSH
    files.write(public, key.public_key().public_bytes(serialization.Encoding.OpenSSH, openssh))
    return path, public


def _private_pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    is_authority = authority is None
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    issuer_key = authority_key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), False)
    )
    if not is_authority:
        addresses = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    return builder.sign(authority_key, hashes.SHA384())
