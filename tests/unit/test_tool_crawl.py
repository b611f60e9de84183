"""Reading pages: which addresses, what of a page is read, and what is said where nothing can be."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afm.errors import ToolError
from afm.params.backends import WebParams
from afm.params.root import read_params
from afm.tools.addresses import guarded_socket, is_public
from afm.tools.answers import addresses
from afm.tools.base import Passage, ToolResult
from afm.tools.crawl import Extractor, WebCrawler
from afm.tools.extract import BrokenDocument, extract_text, unwrapped
from afm.tools.fetch import MISSING, NO_HOST, PRIVATE, ROBOTS, TOO_LARGE, NotReadable, PageFetcher
from afm.tools.site import html_page, is_pdf, pdf_page
from tests.support.faulty import BYTES, FAULTS, SLOW, Faulty, faulty_server, message

WEB = read_params(Path(__file__).parents[2] / "params.yaml").tools.web
TEXT = "Zürich ist eine Stadt. Einwohner: 420 Tausend."
PAGES: dict[str, tuple[bytes, str]] = {
    "/robots.txt": (b"User-agent: *\nDisallow: /private\n", "text/plain"),
    "/private": (b"<p>secret</p>", "text/html"),
    "/utf8": (f"<html><body><p>{TEXT}</p></body></html>".encode(), "text/html; charset=utf-8"),
    "/latin": (f"<html><body><p>{TEXT}</p></body></html>".encode("latin-1"), "text/html; charset=iso-8859-1"),
    "/meta": (
        f'<html><head><meta charset="windows-1252"></head><body><p>{TEXT}</p></body></html>'.encode("cp1252"),
        "text/html",
    ),
    "/wrong": (f"<html><body><p>{TEXT}</p></body></html>".encode(), "text/html; charset=no-such"),
    "/cyrillic": ("Москва - столица России и крупнейший город страны.".encode("koi8-r"), "text/plain; charset=koi8-r"),
    "/kanji": ("<p>東京は日本の首都です。</p>".encode("sjis"), "text/html; charset=shift_jis"),
    "/nothing": (b"<html><head><script>render()</script></head><body></body></html>", "text/html"),
    "/film": (b"\x00\x01", "video/mp4"),
    "/broken": (b"%PDF-1.4 and nothing more", "application/pdf"),
    "/large": (b"x" * 60_000, "text/plain"),
}  # fmt: skip


def pages(path: str, _body: bytes) -> tuple[bytes, str]:
    return PAGES.get(path, (b"", "text/plain"))


@pytest.fixture(scope="module")
def server() -> Iterator[Faulty]:
    with faulty_server(pages) as found:
        yield found


@pytest.fixture
def web(server: Faulty) -> Faulty:
    server.fault, server.good_after = "none", None
    server.asked.clear()
    return server


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afm.retrying.FIRST_WAIT_S", 0.01)


def web_params(**changes: Any) -> WebParams:
    quick = {"timeout_s": 10.0, "max_page_bytes": 50_000, "private_hosts": ("127.0.0.1",)}
    return WEB.model_copy(update=quick | changes)


def with_fetcher(params: WebParams, work: Any) -> Any:
    async def run() -> Any:
        fetcher = PageFetcher(params, {})
        try:
            return await work(fetcher)
        finally:
            await fetcher.close()

    return asyncio.run(run())


def fetch(url: str, **changes: Any) -> Any:
    return with_fetcher(web_params(**changes), lambda fetcher: fetcher.fetch(url))


class InProcess(Extractor):
    """Extraction without workers."""

    async def text(self, document: Any) -> str:
        from afm.tools.extract import document_kind

        return extract_text(document_kind(document), document.body, document.charset)


def crawl(*urls: str, **changes: Any) -> ToolResult:
    params = web_params(**changes)

    async def work(fetcher: PageFetcher) -> ToolResult:
        return await WebCrawler(params, fetcher, InProcess(1.0), None).crawl(urls, "")

    result: ToolResult = with_fetcher(params, work)
    return result


PRIVATE_URLS = [
    "http://127.0.0.1:{port}/utf8",
    "http://localhost:{port}/utf8",
    "http://localhost.:{port}/utf8",
    "http://[::1]:{port}/utf8",
    "http://[::ffff:127.0.0.1]:{port}/utf8",
    "http://[::ffff:7f00:1]:{port}/utf8",
    "http://2130706433:{port}/utf8",
    "http://0x7f000001:{port}/utf8",
    "http://0177.0.0.1:{port}/utf8",
    "http://127.1:{port}/utf8",
    "http://0.0.0.0:{port}/utf8",
    "http://10.0.0.1/",
    "http://169.254.169.254/latest/meta-data",
    "http://168.63.129.16/",
    "http://[64:ff9b::7f00:1]/",
    "http://[fe80::1]/",
]


@pytest.mark.parametrize("url", PRIVATE_URLS)
def test_private_addresses_are_not_read(web: Faulty, url: str) -> None:
    found = crawl(url.format(port=web.port), private_hosts=())
    assert found.status == "empty"
    assert PRIVATE in found.text
    assert web.asked == []


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://a.example", "lyon", "http://", "http://u:p@a.example", "http://a b", "gopher://x"],
)  # fmt: skip
def test_only_web_addresses_are_read(web: Faulty, url: str) -> None:
    assert "This is no web address" in crawl(url).text


def lie_about(monkeypatch: pytest.MonkeyPatch, name: str, *answers: str) -> list[str]:
    """Let a name resolve to one address after the other; returns those given out."""
    real, given = socket.getaddrinfo, []

    def lying(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host != name:
            return real(host, port, *more, **options)
        address = answers[min(len(given), len(answers) - 1)]
        given.append(address)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port or 0)))]

    monkeypatch.setattr(socket, "getaddrinfo", lying)
    return given


@pytest.mark.parametrize("answers", [("127.0.0.1",), ("8.8.8.8", "127.0.0.1"), ("10.1.2.3",)])
def test_a_name_may_not_lead_to_a_private_address(
    web: Faulty, monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...]
) -> None:
    """DNS rebinding: the name is public when it is looked at, and private when it is connected to."""
    given = lie_about(monkeypatch, "rebind.test", *answers)
    socket.getaddrinfo("rebind.test", web.port) if len(answers) > 1 else None
    found = crawl(f"http://rebind.test:{web.port}/utf8", private_hosts=())
    assert PRIVATE in found.text
    assert given and web.asked == []


def test_the_connected_address_is_the_checked_one(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[str] = []

    def note(info: tuple[Any, ...]) -> socket.socket:
        connected.append(info[4][0])
        return guarded_socket(info)

    monkeypatch.setattr("afm.tools.fetch.guarded_socket", note)
    given = lie_about(monkeypatch, "once.test", "192.168.7.7")
    with pytest.raises(NotReadable):
        fetch("http://once.test/", private_hosts=())
    assert connected == given[-1:] == ["192.168.7.7"]


def test_a_redirect_may_not_lead_to_a_private_address(
    web: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = f"http://127.0.0.1:{web.port}/private-service"
    monkeypatch.setitem(BYTES, "redirect", message("302 Found", b"", Location=inside))
    lie_about(monkeypatch, "outside.test", "127.0.0.1")
    web.fault = "redirect"
    # The first host is allowed, so the redirect is really followed; the second is not.
    changes = {"private_hosts": ("outside.test",), "obey_robots": False}
    found = crawl(f"http://outside.test:{web.port}/start", **changes)
    assert PRIVATE in found.text
    assert [path for path, _ in web.asked] == ["/start"]


def test_redirects_end(web: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BYTES, "loop", message("301 Moved", b"", Location="/again"))
    web.fault = "loop"
    assert "redirects too often" in crawl(f"{web.origin}/start", obey_robots=False).text
    assert len(web.asked) == WEB.max_redirects + 1


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=200)
def test_wrapping_an_address_makes_it_no_more_public(number: int) -> None:
    import ipaddress

    plain = ipaddress.IPv4Address(number)
    for wrapped in (f"::ffff:{plain}", f"64:ff9b::{plain}"):
        assert is_public(wrapped) == is_public(str(plain))
    assert not is_public(f"::{plain}")


def test_robots_are_obeyed_and_asked_once(web: Faulty) -> None:
    found = crawl(f"{web.origin}/private", f"{web.origin}/utf8")
    assert ROBOTS in found.text
    assert TEXT in found.text
    assert [path for path, _ in web.asked] == ["/robots.txt", "/utf8"]
    assert "secret" in crawl(f"{web.origin}/private", obey_robots=False).text


@pytest.mark.parametrize("path", ["/utf8", "/latin", "/meta", "/wrong"])
def test_charsets(web: Faulty, path: str) -> None:
    assert crawl(web.origin + path).text == f"Page 1 [{web.origin}{path}]\n{TEXT}"


def test_other_scripts(web: Faulty) -> None:
    assert "東京は日本の首都です。" in crawl(f"{web.origin}/kanji").text
    assert "Москва" in crawl(f"{web.origin}/cyrillic").text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/gone", MISSING),
        ("/nothing", "This page holds no text."),
        ("/film", "video/mp4 is neither text nor PDF"),
        ("/large", TOO_LARGE),
    ],
)
def test_facts_about_pages_are_told(web: Faulty, path: str, says: str) -> None:
    found = crawl(web.origin + path)
    assert (found.status, found.metadata) == ("empty", {})
    assert says in found.text


PAGE_FAULTS = {
    "status_429": "rate_limited",
    "status_500": "unavailable",
    "status_503": "unavailable",
    "cut_body": "broken_answer",
    "hang_up": "broken_answer",
    "garbage": "broken_answer",
    "no_body": "broken_answer",
    "never": "timeout",
    "slow_loris": "timeout",
}


@pytest.mark.parametrize("fault", PAGE_FAULTS)
@pytest.mark.parametrize("at", ["page", "robots"])
def test_a_fault_of_a_page_is_an_error(web: Faulty, fault: str, at: str) -> None:
    if (fault, at) == ("no_body", "robots"):
        pytest.skip("an empty robots.txt allows everything")
    assert fault in FAULTS
    web.fault = fault
    with pytest.raises(ToolError) as caught:
        seconds = 0.4 if fault in SLOW else 10.0
        crawl(f"{web.origin}/utf8", obey_robots=at == "robots", timeout_s=seconds)
    assert caught.value.kind == PAGE_FAULTS[fault]


def test_a_flood_is_cut_off(web: Faulty) -> None:
    web.fault = "flood"
    assert TOO_LARGE in crawl(f"{web.origin}/utf8", obey_robots=False).text


def test_a_broken_pdf_is_an_error(web: Faulty) -> None:
    with pytest.raises(BrokenDocument):
        extract_text("pdf", PAGES["/broken"][0], None)


def test_one_failed_page_of_two_is_named(web: Faulty) -> None:
    closed = "http://127.0.0.1:9/x"
    found = crawl(closed, f"{web.origin}/utf8")
    assert found.status == "ok"
    assert "Page 1 [http://127.0.0.1:9/x]\nThis page could not be read: unavailable." in found.text
    assert found.metadata == {f"failed {closed}": "unavailable"}
    with pytest.raises(ToolError, match="cannot connect"):
        crawl(closed, f"{web.origin}/gone")  # nothing was read, so the failure is not hidden


def test_a_name_that_does_not_exist(web: Faulty) -> None:
    """A fact while names resolve at all; else an outage."""
    unknown = "http://no-such-host.invalid/"
    assert NO_HOST in crawl(unknown, known_host="localhost").text
    with pytest.raises(ToolError) as caught:
        crawl(unknown, known_host="none.invalid")
    assert caught.value.kind == "unavailable"


def test_a_call_reads_so_many_pages(web: Faulty) -> None:
    urls = [f"{web.origin}/utf8?{number}" for number in range(4)]
    PAGES.update({f"/utf8?{number}": PAGES["/utf8"] for number in range(4)})
    found = crawl(*urls, max_pages=2)
    assert found.text.count(TEXT) == 2
    assert found.text.count("Not read") == 2


def test_arguments_are_split() -> None:
    assert addresses(" https://a.example | [B](https://b.example) |  | https://a.example") == [
        "https://a.example",
        "https://b.example",
    ]


@pytest.mark.parametrize("kind", ["html", "pdf"])
@pytest.mark.parametrize(
    "text",
    [
        "Lyon is a city. Country: France. Population: 522 thousand.",
        'It\'s <b>not</b> markup & "quoted": 3 < 4.',
        "A long one. " + "Population: 67 million in well-known towns. " * 30,
    ],
)
def test_the_embedded_site_gives_back_what_went_in(kind: str, text: str) -> None:
    one, two = Passage(title="T", text=text.strip()), Passage(title="T", text="Second: one more.")
    body = html_page([one, two]).encode() if kind == "html" else pdf_page(one)
    assert body == (html_page([one, two]).encode() if kind == "html" else pdf_page(one))
    found = extract_text("html" if kind == "html" else "pdf", body, "utf-8")
    assert found == text.strip() + (f"\n{two.text}" if kind == "html" else "")


def test_only_plain_text_becomes_pdf() -> None:
    assert is_pdf("x", [Passage(title="a", text="b")], 1.0)
    assert not is_pdf("x", [Passage(title="a", text="b")], 0.0)
    assert not is_pdf("x", [Passage(title="ä", text="b")], 1.0)
    assert not is_pdf("x", [Passage(title="a", text="b")] * 2, 1.0)
    assert unwrapped("one\ntwo-\nthree\n\nfour") == "one two-three\nfour"


def test_a_worker_that_hangs_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that never ends costs its deadline, not a worker."""
    from afm.tools.fetch import Document

    page = Document(url="u", mime="text/plain", charset="utf-8", body=b"text")

    async def work() -> str:
        extractor = Extractor(20.0)
        try:
            assert await extractor.text(page) == "text"
            extractor._deadline_s = 0.5
            with monkeypatch.context() as patch:
                patch.setattr("afm.tools.crawl.extract_text", _hang)
                with pytest.raises(NotReadable, match=r"within 0\.5 s"):
                    await extractor.text(page)
            extractor._deadline_s = 20.0
            return await extractor.text(page)
        finally:
            extractor.close()

    assert asyncio.run(work()) == "text"


def _hang(*_arguments: Any) -> str:
    while True:
        pass
