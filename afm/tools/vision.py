"""`visual_inspector`: a question about an image, asked of a multimodal model behind an OpenAI-compatible endpoint."""

import asyncio
import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.params.backends import VisionParams
from afm.tools.base import ToolResult
from afm.tools.fetch import NotReadable, PageFetcher
from afm.tools.model import ToolModel

_FENCE = re.compile(r"```json\s*\n(.*?)\n?```", re.DOTALL)
_HOW = 'The body must be one ```json fence like {"file_path": "...", "question": "..."}.'
_DESCRIBE = "Describe this image in detail: text, numbers, objects and how they are arranged."
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What the body of a visual_inspector tag asks for."""

    file_path: str
    """A path below the image folder, or an address."""
    question: str


def read_inspection(body: str) -> Inspection | None:
    """Read the fenced object; None when it is not one."""
    match = _FENCE.fullmatch(body.strip())
    try:
        asked: Any = json.loads(match[1]) if match else None
    except ValueError:
        return None
    path = asked.get("file_path") if isinstance(asked, dict) else None
    if not isinstance(path, str) or not path.strip():
        return None
    return Inspection(file_path=path.strip(), question=str(asked.get("question") or _DESCRIBE))


class VisualInspector:
    """Asks the model; belongs to the event loop that uses it first."""

    def __init__(self, params: VisionParams, fetcher: PageFetcher) -> None:
        """Connect lazily.

        Raises:
            UserError: the key's environment variable is not set, or the image folder does not exist.
        """
        self._params = params
        self._fetcher = fetcher
        self._folder = Path(params.image_folder).resolve() if params.image_folder else None
        if self._folder is not None and not self._folder.is_dir():
            raise UserError(f"tools.vision.image_folder: no such folder: {self._folder}")
        self._model = ToolModel(params.endpoint)

    async def inspect(self, argument: str, _goal: str = "") -> ToolResult:
        """Answer a tag body; what the policy did wrong is said to it, what failed is raised.

        Raises:
            ToolError: the image's server, or the model, failed.
        """
        asked = read_inspection(argument)
        if asked is None:
            return ToolResult(text=f"[FAILED] {_HOW}", status="ok")
        return await self.answer(asked)

    async def answer(self, asked: Inspection) -> ToolResult:
        """Answer a question about an image; see `inspect`."""
        try:
            image = await self._image(asked.file_path)
        except NotReadable as error:
            return ToolResult(text=f"[FAILED] {error}", status="empty")
        content = [
            {"type": "text", "text": asked.question},
            {"type": "image_url", "image_url": {"url": image}},
        ]
        text = await self._model.ask([{"role": "user", "content": content}])
        return ToolResult(text=text, status="ok")

    async def close(self) -> None:
        """Close all connections."""
        await self._model.close()

    async def _image(self, where: str) -> str:
        """Return an image as a data URL."""
        if re.match(r"https?://", where):
            body = (await self._fetcher.fetch(where)).body
        else:
            body = await asyncio.to_thread(self._local, where)
        if len(body) > self._params.max_image_bytes:
            raise NotReadable(f"This image is larger than {self._params.max_image_bytes} bytes.")
        mime = next((mime for magic, mime in _MAGIC.items() if body.startswith(magic)), None)
        if mime is None:
            raise NotReadable("This is no PNG, JPEG, GIF or WebP image.")
        return f"data:{mime};base64,{base64.b64encode(body).decode()}"

    def _local(self, where: str) -> bytes:
        if self._folder is None:
            raise NotReadable("Local files may not be read: give an address.")
        path = (self._folder / where).resolve()
        if not path.is_relative_to(self._folder) or not path.is_file():
            raise NotReadable("No such image.")
        with path.open("rb") as stream:
            return stream.read(self._params.max_image_bytes + 1)
