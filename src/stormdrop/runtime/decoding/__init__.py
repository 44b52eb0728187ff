"""Language models with a cache: tokens in, tokens out.

decoder.py   `Decoder`: a model, its cache, and what it generates
form.py      which inputs and outputs of a model are what, and the steps that its sizes allow
states.py    which output of a step is which input of the next one
cache.py     keys and values of the tokens so far, in memory that grows
steps.py     a step: the model is called, and the cache has its new rows
sampling.py  which token follows, by the logits
"""

from .decoder import Decoder
from .sampling import Sampling

__all__ = ["Decoder", "Sampling"]
