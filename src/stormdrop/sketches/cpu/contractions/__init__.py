"""The register-blocked contraction.

register_blocked.py                  which functions it takes, and its knobs
tiled_contraction.py                 its stages and their schedule
dot_products.py, packed_words.py     its inner statement for bytes and bfloat16, and the words that it multiplies
wide_bytes.py                        bytes in 16 bits for it
cost_model.py, contraction_shape.py  what to expect of it before anything is measured
"""
