"""GPUs as their drivers give them: takes code of kernels and arrays, gives results and the device's seconds. No TVM."""
