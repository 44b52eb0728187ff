"""Other machines that run kernels by TVM's RPC.

rpc.py      such a machine
tracker.py  a rack of them
"""
