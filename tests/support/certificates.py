"""Keys on elliptic curves and a small certificate authority, made anew in a folder."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey
YEAR = timedelta(days=365)


def private_key(path: Path, curve: ec.EllipticCurve | None = None, password: str = "") -> Key:
    """Write a new private key."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    how = form.BestAvailableEncryption(password.encode()) if password else form.NoEncryption()
    path.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, how))
    return key


def public_key(path: Path, key: Key) -> Path:
    """Write the public half of a key."""
    info = form.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, info))
    return path


@dataclass(frozen=True, kw_only=True)
class Authority:
    """One certificate that signs others."""

    key: Key
    certificate: x509.Certificate


def root(path: Path, name: str = "Root") -> Authority:
    """Make a certificate that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(name, key, name, key, is_authority=True)
    return Authority(key=key, certificate=_written(path, certificate))


def below(path: Path, above: Authority, name: str = "Department") -> Authority:
    """Make an authority below another one."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = _name_of(above)
    certificate = _certificate(name, key, issuer, above.key, is_authority=True)
    return Authority(key=key, certificate=_written(path, certificate))


def certify(
    path: Path,
    above: Authority,
    key: Key,
    *,
    name: str = "Auditor",
    begin: datetime | None = None,
    end: datetime | None = None,
    may_sign: bool = True,
) -> Path:
    """Write the certificate of a key."""
    certificate = _certificate(
        name, key, _name_of(above), above.key, begin=begin, end=end, may_sign=may_sign
    )
    _written(path, certificate)
    return path


def _certificate(
    name: str,
    key: Key,
    issuer: str,
    issuer_key: Key,
    *,
    is_authority: bool = False,
    begin: datetime | None = None,
    end: datetime | None = None,
    may_sign: bool = True,
) -> x509.Certificate:
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=may_sign and not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not may_sign,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin or now - (4 * YEAR if is_authority else timedelta(days=1)))
        .not_valid_after(end or now + 4 * YEAR)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(issuer_key, hashes.SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name_of(authority: Authority) -> str:
    found = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value)


def _written(path: Path, certificate: x509.Certificate) -> x509.Certificate:
    path.write_bytes(certificate.public_bytes(form.Encoding.PEM))
    return certificate
