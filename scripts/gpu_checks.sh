#!/usr/bin/env bash
# What can be checked of a GPU without one. What the tests do as well: every kernel of four networks' plans and of the
# families' cases is compiled for gfx906 and compared with what is kept of it; three networks run on PoCL, kernel by
# kernel against numpy, and whole against ONNX Runtime. Beyond them: what TVM's rules make of the same groups, more of
# the configurations that families offer, more random models. Arguments go to gpu_numbers.py.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
python scripts/gpu_kernels.py --check
python scripts/gpu_numbers.py mobilenet_v1 minilm_l6 yolov4_tiny --seeds 0:8 "$@"
