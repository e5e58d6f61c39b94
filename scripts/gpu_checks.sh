#!/usr/bin/env bash
# What can be checked of a GPU without one, in full; the tests take a sample. Every kernel of four networks and of the
# families' cases is compiled for gfx906 and compared with what is kept of it; three networks and random models run on
# PoCL, kernel by kernel against numpy, and whole against ONNX Runtime. Arguments go to gpu_numbers.py.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
python scripts/gpu_kernels.py --check
python scripts/gpu_numbers.py mobilenet_v1 minilm_l6 yolov4_tiny --seeds 0:8 "$@"
