"""What SGLang needs to serve EAGLE-3 on a machine without a GPU, put in from outside.

SGLang's CPU path calls compiled kernels that are published for CUDA only. The modules here do the same work in
plain torch: `cache_locations` (bookkeeping of the key/value cache), `tree` (the draft tree and its greedy
verification) and `attention`. `stand_in` offers them under the names that SGLang 0.5.23 imports from
`sgl_kernel`; `interpreted` gives SGLang 0.5.8 and 0.5.9, whose CPU path knows no speculation, the pieces they
lack. Nothing here is fast; it is exact, which a test of acceptance needs and a benchmark of speed does not.
"""
