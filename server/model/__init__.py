"""The engine's Model and Tokenizer, with torch and transformers."""

import os
import sys

# Read once, when tqdm is first imported, and the only way to silence the bars that transformers draws without asking
# its own settings: into a log they would go as one endless line.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")
