"""Random ONNX graphs, compiled with default schedules and compared with onnxruntime.

    drawing.py      the graph while it is drawn: its values are known, because onnxruntime runs each node at once
    chance.py       what decides everything that is drawn
    telling.py      which results say something
    registry.py     the operators that are drawn
    pointwise.py, moving.py, reducing.py, images.py, products.py, codes.py, flow.py
                    how a node of each operator is drawn
    graphs.py       a whole graph from a seed
    reference.py    what onnxruntime computes, and how far from it another runtime may be
    judge.py        what the product makes of a graph: right, refused, wrong, ...
    shrink.py       the smallest graph that has the same verdict
    batch.py        many graphs in a child process, so that a crash or a hang costs one of them
    planted.py      faults on purpose, which must be found

`python -m fuzz SEED...` in the folder of the campaigns judges single graphs, and `--shrink` shrinks them.
"""
