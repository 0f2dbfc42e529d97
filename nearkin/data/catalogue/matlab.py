"""The MATLAB files in which two older data sets keep their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nearkin.errors import DataError


def read_matlab(path: Path, *names: str) -> dict[str, Any]:
    """The named variables of a `.mat` file as arrays of at least one dimension, without singleton axes."""
    import numpy as np
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True, variable_names=list(names))
    except Exception as error:  # scipy raises whatever its parser runs into
        raise DataError(f"{path} could not be read as a MATLAB file ({error}): download it again.") from error
    for name in names:
        if name not in content:
            raise DataError(f"{path} has no variable '{name}': download it again.")
    return {name: np.atleast_1d(content[name]) for name in names}
