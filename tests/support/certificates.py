"""A certificate authority for the length of a test, and the certificates that it signs."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its private key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates with a key that nobody else has; `ca_file` is what those who trust it are given."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        certificate = (
            _begin(self._name, self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = folder / f"{name}.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def certify_server(self, *hosts: str) -> CertificateFiles:
        """Make a certificate for a server that is called by these names or addresses."""
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._certify(hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, names)

    def certify_client(self, name: str) -> CertificateFiles:
        """Make a certificate by which a client proves its name."""
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        return self._certify(name, ExtendedKeyUsageOID.CLIENT_AUTH, names)

    def _certify(
        self, name: str, usage: x509.ObjectIdentifier, names: x509.SubjectAlternativeName
    ) -> CertificateFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _begin(_named(name), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(names, critical=False)
            .add_extension(issuer_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = CertificateFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(write_key(key))
        return files


def write_key(key: ec.EllipticCurvePrivateKey, passphrase: bytes | None = None) -> bytes:
    """Write a private key as PEM, encrypted if there is a passphrase."""
    locked = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Valid since yesterday: clocks differ.
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
