"""Signatures of bundles: with keys, with certificates of a small authority, and what breaks them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import load_pem_x509_certificate
from model_signing import verifying

from afm.errors import UserError
from flows.audit.bundle import SIGNATURE
from flows.audit.export_sign import Signer, Trust, look, prepare
from tests.support.certificates import (
    YEAR,
    Authority,
    below,
    certify,
    private_key,
    public_key,
    root,
)

FILES = {"bundle.json": "{}\n", "runs/a/record.json": '{"a": 1}\n', ".gitignore": "x\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "bundle"
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def signer(
    key: Path,
    certificate: Path | None = None,
    chain: tuple[Path, ...] = (),
    password: str | None = None,
) -> Signer:
    return Signer(key=key, certificate=certificate, chain=chain, password_variable=password)


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def trust(public: Path | None = None, *roots: Path) -> Trust:
    return Trust(public_key=public, roots=roots)


@pytest.mark.parametrize(
    "curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda c: c.name
)
def test_a_key_signs_every_file(folder: Path, tmp_path: Path, curve: ec.EllipticCurve) -> None:
    key = private_key(tmp_path / "key.pem", curve)
    prepare(signer(tmp_path / "key.pem"))(folder)
    own = trust(public_key(tmp_path / "key.pub", key))
    assert look(folder, own).failure is None
    moved = folder.rename(tmp_path / "elsewhere")
    assert look(moved, own).failure is None
    for name in FILES:
        body = (moved / name).read_bytes()
        (moved / name).write_bytes(bytes([body[0] ^ 1]) + body[1:])
        assert name in str(look(moved, own).failure)
        (moved / name).write_bytes(body)


def test_the_package_alone_verifies_it(folder: Path, tmp_path: Path) -> None:
    """Without this project, and without being told what was left out of the signature."""
    (folder / ".gitignore").unlink()  # no bundle has one, and the package would not look at it
    key = private_key(tmp_path / "key.pem")
    prepare(signer(tmp_path / "key.pem"))(folder)
    public = public_key(tmp_path / "key.pub", key)
    alone = verifying.Config().use_elliptic_key_verifier(public_key=public)
    alone.verify(folder, folder / SIGNATURE)
    (folder / "more").write_text("x")
    with pytest.raises(ValueError, match="Extra files"):
        alone.verify(folder, folder / SIGNATURE)


def test_a_file_added_or_taken_away_or_linked(folder: Path, tmp_path: Path) -> None:
    key = private_key(tmp_path / "key.pem")
    prepare(signer(tmp_path / "key.pem"))(folder)
    own = trust(public_key(tmp_path / "key.pub", key))
    (folder / ".git").mkdir()
    (folder / ".git" / "hook").write_text("x")  # the package by itself would not look there
    assert ".git/hook" in str(look(folder, own).failure)
    (folder / ".git" / "hook").unlink()
    (folder / ".git" / "hook").symlink_to(tmp_path / "key.pem")
    assert "symlink" in str(look(folder, own).failure)
    (folder / ".git" / "hook").unlink()
    assert look(folder, own).failure is None
    (folder / ".gitignore").unlink()
    assert ".gitignore" in str(look(folder, own).failure)


def test_another_key_and_an_edited_signature(folder: Path, tmp_path: Path) -> None:
    key, other = private_key(tmp_path / "key.pem"), private_key(tmp_path / "other.pem")
    prepare(signer(tmp_path / "key.pem"))(folder)
    own = trust(public_key(tmp_path / "key.pub", key))
    strange = trust(public_key(tmp_path / "other.pub", other))
    assert look(folder, strange).by is None
    assert "Key mismatch" in str(look(folder, strange).failure)
    path = folder / SIGNATURE
    whole = path.read_text()
    seal = json.loads(whole)
    seal["verificationMaterial"]["publicKey"]["hint"] = None  # no hint: the mathematics decides
    path.write_text(json.dumps(seal))
    assert "does not fit the key" in str(look(folder, strange).failure)
    for damage in ("", "{}", "[]", whole[: len(whole) // 2], whole.replace("vnd", "xnd")):
        path.write_text(damage)
        assert look(folder, own).failure, damage
    payload = seal["dsseEnvelope"]["payload"]
    seal["dsseEnvelope"]["payload"] = payload[:-8] + payload[-8:].swapcase()
    path.write_text(json.dumps(seal))
    assert look(folder, own).failure


@pytest.mark.parametrize("certified", [False, True])
def test_a_key_with_a_password(
    folder: Path, tmp_path: Path, certified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = private_key(tmp_path / "key.pem", password="wörd")
    above = root(tmp_path / "root.pem")
    certificate = certify(tmp_path / "own.pem", above, key) if certified else None
    named = signer(tmp_path / "key.pem", certificate, password="BUNDLE_WORD")
    before = open_files()
    with pytest.raises(UserError, match="BUNDLE_WORD: no such variable"):
        prepare(named)
    monkeypatch.setenv("BUNDLE_WORD", "wrong")
    with pytest.raises(UserError, match="cannot sign with"):
        prepare(named)
    monkeypatch.setenv("BUNDLE_WORD", "wörd")
    prepare(named)(folder)
    public = None if certified else public_key(tmp_path / "key.pub", key)
    assert look(folder, trust(public, tmp_path / "root.pem")).failure is None
    with pytest.raises(UserError, match="--key-password-env"):
        prepare(signer(tmp_path / "key.pem", certificate))
    assert open_files() == before


def test_keys_that_do_not_fit(tmp_path: Path) -> None:
    private_key(tmp_path / "k1.pem", ec.SECP256K1())
    plain = form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    (tmp_path / "rsa.pem").write_bytes(rsa.generate_private_key(65537, 2048).private_bytes(*plain))
    (tmp_path / "text.pem").write_text("no key\n")
    own = private_key(tmp_path / "key.pem")
    other = private_key(tmp_path / "other.pem")
    above = root(tmp_path / "root.pem")
    foreign = certify(tmp_path / "other.crt", above, other)
    for key, certificate in (
        ("k1.pem", None),
        ("rsa.pem", None),
        ("text.pem", None),
        ("none.pem", None),
        ("key.pem", foreign),
        ("key.pem", tmp_path / "text.pem"),
    ):
        with pytest.raises(UserError, match="cannot sign with"):
            prepare(signer(tmp_path / key, certificate))
    public_key(tmp_path / "key.pub", own)
    for wrong in (
        trust(tmp_path / "none.pub"),
        trust(tmp_path / "text.pem"),
        trust(tmp_path / "root.pem"),
    ):
        with pytest.raises(UserError, match="cannot read"):
            look(tmp_path, wrong)
    for wrong in (trust(None, tmp_path / "none.pem"), trust(None, tmp_path / "text.pem")):
        with pytest.raises(UserError, match="cannot read"):
            look(tmp_path, wrong)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A department below a root."""
    return below(tmp_path / "department.pem", root(tmp_path / "root.pem"))


def test_a_certificate_below_a_root(folder: Path, tmp_path: Path, authority: Authority) -> None:
    key = private_key(tmp_path / "key.pem")
    own = certify(tmp_path / "own.pem", authority, key)
    prepare(signer(tmp_path / "key.pem", own, (tmp_path / "department.pem",)))(folder)
    seal = look(folder, trust(None, tmp_path / "root.pem"))
    assert (seal.by, seal.failure) == ("certificate of CN=Auditor", None)
    root(tmp_path / "twin.pem")  # of the same name
    assert "leads to none of the roots" in str(
        look(folder, trust(None, tmp_path / "twin.pem")).failure
    )
    root(tmp_path / "second.pem", "Second root")
    both = trust(None, tmp_path / "second.pem", tmp_path / "root.pem")
    assert look(folder, both).failure is None
    assert look(
        folder, trust(public_key(tmp_path / "key.pub", key))
    ).failure  # no certificate asked for


def test_a_chain_with_a_link_missing(folder: Path, tmp_path: Path, authority: Authority) -> None:
    key = private_key(tmp_path / "key.pem")
    own = certify(tmp_path / "own.pem", authority, key)
    prepare(signer(tmp_path / "key.pem", own))(folder)
    assert "leads to none" in str(look(folder, trust(None, tmp_path / "root.pem")).failure)


def test_a_key_alone_under_roots(folder: Path, tmp_path: Path) -> None:
    private_key(tmp_path / "key.pem")
    root(tmp_path / "root.pem")
    prepare(signer(tmp_path / "key.pem"))(folder)
    assert look(folder, trust(None, tmp_path / "root.pem")).failure


@pytest.mark.parametrize("kind", ["expired", "not for signing", "no authority"])
def test_certificates_that_do_not_count(folder: Path, tmp_path: Path, kind: str) -> None:
    above = root(tmp_path / "root.pem")
    key, now = private_key(tmp_path / "key.pem"), datetime.now(UTC)
    if kind == "expired":
        days = {"begin": now - YEAR, "end": now - timedelta(days=1)}
        own = certify(tmp_path / "own.pem", above, key, **days)
    elif kind == "not for signing":
        own = certify(tmp_path / "own.pem", above, key, may_sign=False)
    else:  # a colleague with a plain certificate issues one
        colleague = private_key(tmp_path / "colleague.key")
        certify(tmp_path / "colleague.pem", above, colleague, name="Colleague")
        loaded = load_pem_x509_certificate((tmp_path / "colleague.pem").read_bytes())
        own = certify(tmp_path / "own.pem", Authority(key=colleague, certificate=loaded), key)
    chain = (tmp_path / "colleague.pem",) if kind == "no authority" else ()
    prepare(signer(tmp_path / "key.pem", own, chain))(folder)
    seal = look(folder, trust(None, tmp_path / "root.pem"))
    told = {
        "expired": "expired on",
        "not for signing": "cannot be used for signing",
        "no authority": "leads to none of the roots",
    }[kind]
    assert seal.by is None
    assert told in str(seal.failure)
