"""The engine's Model and Tokenizer, with torch and transformers."""

import os
import sys

# Read once, when tqdm is first imported, and the only way to silence the bars that transformers draws without asking
# its own settings: into a log they would go as one endless line.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")

# Read when torch's threads start. They spin while they wait for each other; by default so long that a step takes fifty
# times as long where another process wants the same cores. This is long enough to lose nothing where none does.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
