"""The API's errors, with the bodies that clients read."""

from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
}


class ApiError(Exception):
    """An answer other than success.

    Attributes:
        code: HTTP status.
        message: as a client sees it.
        reason: machine-readable; by default the code's usual one.
    """

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS[code]

    def body(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def not_found(resource: str, name: str) -> ApiError:
    return ApiError(404, f'{resource} "{name}" not found')


def invalid(kind: str, name: str, *problems: str) -> ApiError:
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return ApiError(422, f'{kind} "{name}" is invalid: {text}')
