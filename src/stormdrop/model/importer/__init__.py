"""Turns a user's model into a graph of tasks.

any_model.py                                      whatever a user has as a model
isolated.py                                       ONNX, imported in a child process with bounds
source.py                                         an ONNX model with the sizes of its inputs: nothing is computed
weights.py                                        large weights, which stay in files and are mapped
halves.py                                         models of float16 and bfloat16 become float32
onnx_model.py, inputs.py                          a check of it, and its inputs
deciding.py                                       inputs whose values decide a shape
sparse.py, narrow.py                              constants that are stored in another way than kernels read them
training.py                                       nodes for training, which are refused
standard.py                                       which nodes have operators of the ONNX standard
sizes.py                                          which tensors are too large for this machine
combinations.py, together.py                      the sizes that a user asks for; their graphs made one
simplify.py, functions.py, loops.py, optimize.py  rewrites in ONNX
qdq.py                                            layers of the QDQ form become layers of bytes
contributed.py                                    operators of onnxruntime's own that the importer takes
code_layers.py                                    layers whose weights are codes of 4 or 8 bits
rewriting.py                                      what both of these share
frontend.py, converters/                          from ONNX to Relax
not_imported.py                                   nodes that TVM's importer would get wrong
partition.py, segments.py, trial_run.py           the parts of a model that onnxruntime runs
whole_part.py, wholly_foreign.py                  a model of which it runs everything
failing_operator.py                               the operator at which a pass fails
torch_module.py, torch_origin.py                  torch modules, and another way to compute them
relax_module.py                                   Relax modules
graph.py, tasks.py, constants.py                  the graph, its distinct kernels, its constants
origin.py                                         where a graph comes from
"""
