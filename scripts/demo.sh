#!/usr/bin/env bash
# The main job on one network, under ten minutes: compile with the analytical cost model, measure candidate kernels, train
# a predictor on them, compile with the learned cost model, and time all of it beside the greedy plan and the peers.
# Usage: scripts/demo.sh [NETWORK] [COLLECTION BUDGET]. Everything it makes is put into build/demo-NETWORK/.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" bench
network="${1:-mobilenet_v1}"
budget="${2:-4m}"
out="build/demo-$network"
mkdir -p "$out"
export AUTOFUSE_HOME="$PWD/build/home"

step() { printf '\n== %s\n' "$*"; }

step "Measure this machine (under a minute, once)"
autofuse doctor --json | grep -q '"calibrated": true' || autofuse doctor --calibrate > /dev/null
autofuse doctor

step "Compile $network with the analytical cost model"
autofuse compile "$network" --strategy dp --cost-model analytical -o "$out/analytical.so" --save-plan "$out/analytical.json"

step "Measure candidate kernels for $budget (run again to go on)"
autofuse collect "$network" --db "$out/records.db" --budget "$budget"

step "Train a predictor on the records"
autofuse train --db "$out/records.db" -o "$out/predictor"

step "Compile $network with the learned cost model and the records"
autofuse compile "$network" --strategy dp --cost-model learned --predictor "$out/predictor" --db "$out/records.db" \
    -o "$out/learned.so" --save-plan "$out/learned.json"

step "All of it side by side"
autofuse bench "$network" --strategy dp --cost-model learned --predictor "$out/predictor" --db "$out/records.db" \
    --save "$out/bench.json" --executable "analytical=$out/analytical.so" --against greedy,none,onnxruntime,openvino,torch-compile
