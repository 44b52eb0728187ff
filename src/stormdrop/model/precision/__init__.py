"""A model in bfloat16, float16 or TF32, and weights that are codes.

choice.py           which of its layers are in this type
mixed.py            which of its values are in a type of 16 bits
tf32.py             which of its layers multiply TF32
reference.py        what it should compute, and how far it is from float32
decoded_weights.py  which weights of 4 and 8 bits are decoded when a model is compiled
"""
