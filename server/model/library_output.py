"""What the model libraries print of their own accord."""

import logging
import sys

from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging


def quieten_libraries() -> None:
    """Leaves the progress bars, and those only where someone may be looking."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves these untyped
    if sys.stderr.isatty():
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        enable_progress_bars()
    else:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        disable_progress_bars()
