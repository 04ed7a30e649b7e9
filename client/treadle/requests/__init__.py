"""What a caller asks for, to request messages."""

from treadle.requests.complete import CompleteOptions, complete
from treadle.requests.generate import GenerateOptions, generate, generations
from treadle.requests.input import Input
from treadle.requests.output import LogprobsOf, ToolCallFormat
from treadle.requests.tokenize import TokenizeOptions, detokenize, tokenize

__all__ = [
    "CompleteOptions",
    "GenerateOptions",
    "Input",
    "LogprobsOf",
    "TokenizeOptions",
    "ToolCallFormat",
    "complete",
    "detokenize",
    "generate",
    "generations",
    "tokenize",
]
