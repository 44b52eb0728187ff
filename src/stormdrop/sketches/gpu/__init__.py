"""Sketches for NVIDIA GPUs, and what a tiling asks of a device before it is compiled.

contraction.py      a sum of products in blocks, threads and registers
dot_products/       contractions of bytes, four products at a time
mma.py              products in half precision, TF32 or int8 on tensor cores since sm_80, convolutions too
tensor_core.py      products of matrices on those before
matrix_product.py   a function as such a product of matrices
winograd.py         convolutions with fewer products, in three kernels
attention/          two products with a softmax between them
transpose.py        what is read along one axis and written along another
rows/               norms, softmax, sums, one-row products and elementwise chains, read once and in vectors
streaming.py        everything else
limits.py           which tilings a GPU can run, and the default one
tiled_loops.py      the loops of a tiled contraction
zero_points.py      bytes less their zero points as bytes, or as wider integers
split_reduction.py  a reduction in parts that blocks of their own sum up
tiling.py           the resources that a tiled contraction uses
times/              the time that it is expected to take, and that of the other sketches
features.py         the features of Ansor-AF, from these resources
statements/         those of Ansor, of a tiled contraction's statements
intrinsics.py       TVM's tensor intrinsics, loaded fast
tf32.py             tensor intrinsics for TF32, of which TVM has none
"""
