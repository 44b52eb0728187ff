"""The compiled model: what a loaded one needs, and nothing else.

artifact.py                          called, and saved to a folder
loading.py                           loaded from there
artifact_files.py, atomic_folder.py  the files of the folder, and how it is replaced in one step
metadata.py, kept_tuning.py          what a model says about itself, and about its tuning
layers.py                            the computing nodes of the model, and the calls that compute them
constants_file.py                    the constants of its program, in a file that is mapped
call_inputs.py, machines.py          where kernels read the inputs of a call, and the machines that serve calls
callers.py                           the thread that a call runs in
onnxruntime_parts.py                 its parts that onnxruntime runs
"""
