"""Where data comes from and under which terms, for the data card."""

from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """One PyPI package that ships data, with the licence of its code and of the data inside."""

    package: str
    code_license: str
    """SPDX expression, or the package's own words."""
    data_license: str
    data_origin: str
    """Who made the data, as the data's licence asks to be credited."""
    url: str

    @property
    def version(self) -> str:
        """Installed version of the package."""
        return metadata.version(self.package)
