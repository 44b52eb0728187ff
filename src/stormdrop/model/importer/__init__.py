"""From a user's model to a graph of tasks.

any_model.py                          whatever a user has as a model
isolated.py                           ONNX, imported in a child process with bounds
onnx_model.py                         a check of an ONNX model
import_onnx.py                        ONNX to a graph: the order of all rewrites
frontend.py, converters/              from ONNX to Relax
partition.py                          the parts of a model that onnxruntime runs
whole_part.py                         a model of which it runs everything
together.py                           the graphs of several sizes made one
node_layers.py, torch_layers.py       the nodes of a model as layers
failing_operator.py                   the operator at which a pass fails
torch_module.py, torch_origin.py      torch modules, and another way to compute them
torch_converters.py                   operators of torch that TVM's importer lacks
relax_module.py                       Relax modules
"""
