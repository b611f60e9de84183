"""Signing a bundle with OpenSSF model-signing: keys and certificates are the user's own, nothing is sent anywhere."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from afm.errors import UserError
from flows.audit.bundle import SIGNATURE

INSTALL = (
    "the package model-signing is missing: `pip install -c constraints/pipeline.txt model-signing`"
)


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


def sign(folder: Path, signer: Signer) -> None:
    """Write the signature into the bundle.

    Raises:
        UserError: model-signing is missing, or the key or certificate cannot be used.
    """
    config = _package("signing").Config().set_hashing_config(_hashing(folder))
    try:
        if signer.certificate is None:
            config.use_elliptic_key_signer(private_key=signer.key, password=_password(signer))
        else:
            config.use_certificate_signer(
                private_key=signer.key,
                signing_certificate=signer.certificate,
                certificate_chain=signer.chain,
            )
        config.sign(folder, folder / SIGNATURE)
    except (ValueError, TypeError, OSError) as error:
        raise UserError(f"cannot sign with {signer.key}: {error}") from error


def signature_failure(folder: Path, trust: Trust) -> str | None:
    """Check the signature and every byte under it; return what is wrong, or None.

    Raises:
        UserError: model-signing is missing, or the key or certificates cannot be read.
    """
    config = _package("verifying").Config().set_hashing_config(_hashing(folder))
    try:
        if trust.public_key is not None:
            config.use_elliptic_key_verifier(public_key=trust.public_key)
        else:
            config.use_certificate_verifier(certificate_chain=trust.roots)
    except (ValueError, TypeError, OSError) as error:
        named: Sequence[Path] = [trust.public_key] if trust.public_key else trust.roots
        raise UserError(f"cannot read {', '.join(map(str, named))}: {error}") from error
    try:
        config.verify(folder, folder / SIGNATURE)
    except (ValueError, TypeError, KeyError, OSError) as error:
        return " ".join(str(error).split())
    return None


def _hashing(folder: Path) -> Any:
    """Cover every file: the package would leave out what git calls its own."""
    config = _package("hashing").Config()
    return config.set_ignored_paths(paths=[folder / SIGNATURE], ignore_git_paths=False)


def _password(signer: Signer) -> str | None:
    if signer.password_variable is None:
        return None
    password = os.environ.get(signer.password_variable)
    if password is None:
        raise UserError(f"--key-password-env {signer.password_variable}: no such variable is set")
    return password


def _package(name: str) -> Any:
    if importlib.util.find_spec("model_signing") is None:
        raise UserError(INSTALL)
    return importlib.import_module(f"model_signing.{name}")
