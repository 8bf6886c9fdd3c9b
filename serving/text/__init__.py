"""Between text and tokens: tokenizer, chat template, and the text of an output while it grows. No torch."""

from serving.text.stops import check_stops
from serving.text.stream import TextStream
from serving.text.tokenizer import Tokenizer

__all__ = ["TextStream", "Tokenizer", "check_stops"]
