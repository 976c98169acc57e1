"""Where settings are looked for: the file, the variables, and the names that lead to both."""

import os
from contextvars import ContextVar
from pathlib import Path

CONFIG_FILE = "rollpin.toml"
CONFIG_VARIABLE = "ROLLPIN_CONFIG"
ENV_PREFIX = "ROLLPIN_"
NESTED = ("profiles", "limits", "timeouts")
"""Settings that have settings of their own: ROLLPIN_LIMITS__BODY_BYTES."""
chosen_file: ContextVar[Path | None] = ContextVar("chosen_file", default=None)
"""The file of --config while settings are loaded."""


def config_file() -> Path:
    """rollpin.toml in the working folder, or the file that --config or ROLLPIN_CONFIG names."""
    return chosen_file.get() or Path(os.environ.get(CONFIG_VARIABLE) or CONFIG_FILE)
