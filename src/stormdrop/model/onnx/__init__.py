"""An ONNX model as it is read: which nodes it has, its weights, its sizes.

source.py                    read, with the sizes of its inputs: nothing is computed
standard.py, contributed.py  operators of the ONNX standard; those of onnxruntime that the importer takes
contributed_schemas.py       what onnx has to know of the latter
nodes.py                     the attributes of a node, and the names that it reads and makes
weights.py                   large weights, which stay in files and are mapped
sizes.py                     which tensors are too large for this machine
deciding.py                  inputs whose values decide a shape
index_ranges.py              what a model says of the values of its inputs
training.py                  nodes for training, which are refused
segments.py                  how nodes are merged to parts that onnxruntime runs
trial_run.py                 what onnxruntime makes of a model
rewrites/                    rewrites from ONNX to ONNX
"""
