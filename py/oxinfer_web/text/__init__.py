"""Text to token ids and back in CPython, with a model folder's tokenizer and chat template read as transformers does.

A page has its own (web/src/engine/client/text), which gives the same ids, the same prompts and the same pieces. Needs
the packages tokenizers and jinja2, which a page does not have: import it only where they are.
"""

from .text import Message, Text

__all__ = ["Message", "Text"]
