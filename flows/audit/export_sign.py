"""Signing a bundle with OpenSSF model-signing: keys and certificates are the user's own, nothing is sent anywhere."""

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from afm.errors import UserError
from flows.audit.bundle import INDEX, SIGNATURE, files_below
from flows.audit.export_provenance import digests
from flows.audit.render import listed

MISMATCH = "Signature mismatch"
"""Begins what model-signing says where the signature is good, and files are not those that it covers."""
LONGEST = 300
"""Characters of a reason that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signer:
    """Who signs."""

    key: Path
    """Private key of an elliptic curve (P-256, P-384 or P-521), PEM."""
    certificate: Path | None
    """Certificate of that key, PEM; without one, the public key must be known to whoever verifies."""
    chain: tuple[Path, ...]
    """Certificates between it and the root."""
    password_variable: str | None
    """Name of the environment variable with the key's password."""

    @property
    def method(self) -> Literal["key", "certificate"]:
        """Say what a verifier needs."""
        return "certificate" if self.certificate else "key"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Whom a verifier trusts: a public key, or roots of certificates; one of the two."""

    public_key: Path | None
    roots: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    """What a look at a signature gave."""

    by: str | None
    """The key, or the subject of the certificate; None where the signature does not hold."""
    failure: str | None


def prepare(signer: Signer) -> Callable[[Path], None]:
    """Read key and certificates, so that wrong ones are known before anything is written; return what signs a folder.

    Raises:
        UserError: the key or a certificate cannot be used.
    """
    from model_signing.signing import Config

    config = Config().set_hashing_config(_hashing())
    try:
        with _plain_key(signer) as key:
            if signer.certificate is None:
                config.use_elliptic_key_signer(private_key=key)
            else:
                config.use_certificate_signer(
                    private_key=key,
                    signing_certificate=signer.certificate,
                    # An empty chain is an error to the package; the certificate itself adds nothing.
                    certificate_chain=signer.chain or (signer.certificate,),
                )
    except UserError:
        raise
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise UserError(
            f"cannot sign with {signer.key}: {_short(error)}; what fits is the PEM file of a private key on curve "
            "P-256, P-384 or P-521, with --key-password-env if it has a password, and the certificate of that key"
        ) from error
    return lambda folder: config.sign(folder, folder / SIGNATURE)


def look(folder: Path, trust: Trust) -> Seal:
    """Check the signature, every byte under it, and whose it is.

    Raises:
        UserError: the key or the roots cannot be read.
    """
    from cryptography.exceptions import InvalidSignature
    from OpenSSL.crypto import X509StoreContextError

    config = _verifier(trust)
    try:
        config.verify(folder, folder / SIGNATURE)
        by, expired = _signed_by(folder / SIGNATURE, trust)
    except InvalidSignature:
        return Seal(by=None, failure="does not fit the key: it, or what it signs, was edited")
    except X509StoreContextError as error:
        return Seal(by=None, failure=f"its certificate leads to none of the roots: {error}")
    except (ValueError, TypeError, LookupError, AttributeError, OSError) as error:
        edited = _edited(folder) if str(error).startswith(MISMATCH) else None
        return Seal(by=None, failure=edited or f"does not hold: {_short(error)}")
    return Seal(by=None if expired else by, failure=expired)


def _verifier(trust: Trust) -> Any:
    from model_signing.verifying import Config

    config = Config().set_hashing_config(_hashing())
    try:
        if trust.public_key is not None:
            return config.use_elliptic_key_verifier(public_key=trust.public_key)
        return config.use_certificate_verifier(certificate_chain=trust.roots)
    except (ValueError, TypeError, AttributeError, OSError) as error:
        named: Sequence[Path] = [trust.public_key] if trust.public_key else trust.roots
        raise UserError(
            f"cannot read {', '.join(map(str, named))}: {_short(error)}; what fits is a PEM file, with --public-key a "
            "public key on curve P-256, P-384 or P-521, with --root certificates"
        ) from error


def _hashing() -> Any:
    """Cover every file: the package would leave out what git calls its own."""
    from model_signing.hashing import Config

    return Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


@contextmanager
def _plain_key(signer: Signer) -> Iterator[Path]:
    """Yield the key without its password, through a pipe and never on a disk.

    model-signing takes no password together with a certificate, and hands one to `cryptography` as text where that
    wants bytes.
    """
    if signer.password_variable is None:
        yield signer.key
        return
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key(signer.key.read_bytes(), _password(signer.password_variable))
    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    reader, writer = os.pipe()
    try:
        os.write(writer, pem)  # a pipe holds 4 KiB at the least, a key on these curves is shorter
        os.close(writer)
        yield Path(f"/dev/fd/{reader}")
    finally:
        os.close(reader)


def _password(variable: str) -> bytes:
    password = os.environ.get(variable)
    if password is None:
        raise UserError(f"--key-password-env {variable}: no such variable is set")
    return password.encode()


def _edited(folder: Path) -> str:
    """Name the files that are not as they were signed; the package's own message is full of raw digests."""
    envelope = json.loads((folder / SIGNATURE).read_bytes())["dsseEnvelope"]
    resources = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["resources"]
    signed = {one["name"]: one["digest"] for one in resources}
    found = {name: digests(folder / name)[1] for name in (*files_below(folder), INDEX)}
    wrong = [name for name in sorted({*signed, *found}) if signed.get(name) != found.get(name)]
    return f"does not hold: not as they were signed are {listed(wrong)}"


def _signed_by(signature: Path, trust: Trust) -> tuple[str, str | None]:
    """Say who signed, and whether a certificate has expired.

    model-signing judges certificates as of the day when the signer's began to hold, so it takes an expired one.
    """
    if trust.public_key is not None:
        return f"key {trust.public_key}", None
    from cryptography.x509 import load_der_x509_certificate

    material = json.loads(signature.read_bytes())["verificationMaterial"]
    chain = [
        load_der_x509_certificate(base64.b64decode(one["rawBytes"]))
        for one in material["x509CertificateChain"]["certificates"]
    ]
    by = f"certificate of {chain[0].subject.rfc4514_string()}"
    for one in chain:
        if one.not_valid_after_utc < datetime.now(UTC):
            name, day = one.subject.rfc4514_string(), one.not_valid_after_utc.date()
            why = f"the certificate of {name} expired on {day}, and nothing proves that it was signed before"
            return by, why
    return by, None


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
