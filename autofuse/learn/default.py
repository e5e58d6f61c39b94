"""Which predictor a compile takes when none is named: the one of this kind of target, if it was trained for it.

Predictors are looked for in AUTOFUSE_MODELS (a folder that holds one folder a kind of target, such as `cpu`), else in
`models` of this machine's own folder (`target.hardware_file.home`), else in the `models` that come with a checkout.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from autofuse.errors import PredictorError
from autofuse.target import Hardware
from autofuse.target.hardware_file import home

log = logging.getLogger("autofuse")


def folders() -> list[Path]:
    """Where predictors are looked for, the first place first."""
    if chosen := os.environ.get("AUTOFUSE_MODELS"):
        return [Path(chosen)]
    return [home() / "models", Path(__file__).resolve().parents[2] / "models"]


def default_predictor(hardware: Hardware) -> Path | None:
    """The directory of a predictor that was trained on this hardware, None without one.

    One that cannot be used, or is for other hardware, is passed over; what is wrong with it is logged.
    """
    from autofuse.learn.predictor import describes, read_card

    for folder in folders():
        path = folder / hardware.kind
        if not (path / "card.json").is_file():
            continue
        try:
            if describes(read_card(path), hardware):
                return path
        except PredictorError as error:
            log.warning("%s", error)
            continue
        log.info("the predictor in %s was trained for other hardware and is passed over", path)
    return None
