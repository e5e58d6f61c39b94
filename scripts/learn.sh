#!/usr/bin/env bash
# From data/ to models/cpu, data/plans and docs/learning.md: train, evaluate, tune, plan, write the page. The evaluation
# runs the unseen networks: nothing else should run on the machine meanwhile. A few minutes, most of it the study.
# Usage: scripts/learn.sh [TRIALS]
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
trials="${1:-200}"
unseen="efficientnet_b0 yolov4_tiny vit_tiny shufflenet_v2"

step() { printf '\n== %s\n' "$*"; }

step "Train"
autofuse train --db data/records.db -o models/cpu --search 12
step "Evaluate"
autofuse evaluate --db data/records.db --unseen data/unseen.db --predictor models/cpu --save
step "Tune the thresholds ($trials trials)"
mkdir -p build
autofuse tune --db data/records.db --predictor models/cpu --trials "$trials" --study build/thresholds.study --each \
    $(printf -- '--check %s ' $unseen) --json > build/tuning.json
cp build/tuning.json docs/results/tuning.json
step "Plan all networks"
python scripts/replay.py --write
step "Write docs/learning.md"
python scripts/learning_page.py --strategies
