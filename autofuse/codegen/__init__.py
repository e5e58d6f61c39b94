"""Plan → kernels → machine code → an executable that runs, is saved and loaded.

In the order of the work: `fuse` (a group as one function), `kernels` (scheduled, with a way back), `program` (kernels
in order), `build` (LLVM), `executable` and `package` (the result and its file); `fuse_ops` reads TVM's own partition.
"""
