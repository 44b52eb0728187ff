"""The compiled model: what a loaded one needs, and nothing else.

artifact.py                          called, and saved to a folder
loading.py, tvm_modules.py           loaded from there; kernels as modules of TVM
artifact_files.py, atomic_folder.py  the files of the folder, and how it is replaced in one step
metadata.py, kept_tuning.py          what a model says about itself, and about its tuning
layers.py                            the computing nodes of the model, and the calls that compute them
constants_file.py                    the constants of a graph, in a file that is mapped
native_calls.py                      calls of a native model, which its library executes
in_process.py                        calls of any other, whose kernels are modules of TVM
call_inputs.py, machines.py          where these read the inputs of a call, and the machines that serve them
callers.py                           the thread that such a call runs in
onnxruntime_parts.py                 its parts that onnxruntime runs
"""
