"""Passes that rewrite the Relax code of a model.

rewriting.py          how a pass replaces the function `main`
constants.py          operators on constants are evaluated
batch_norms.py        batch norms are folded
broadcast.py          constants get the axes that a change of layout needs
powers.py             powers become multiplications and square roots
small_results.py      softplus and atanh keep the digits of small results
gathers.py            gathers read inside their tensor for every index
views.py, copies.py   what only moves data or renames axes is simplified, and becomes a reshape
upsampling.py         transposed convolutions whose windows do not overlap become products of pixels
shuffles.py           shuffles of channels go into the convolutions behind them
first_layers.py       convolutions read images with their channels second, as ONNX has them
byte_contractions.py  what follows a contraction of bytes is computed in its kernel
attention.py          the kernels of an attention become one, where that pays
legalize.py           operators become TensorIR functions
"""
