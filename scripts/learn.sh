#!/usr/bin/env bash
# From data/ to models/cpu, data/plans and docs/learning.md: train, evaluate, tune, plan, write the page. The evaluation
# runs the unseen networks: nothing else should run on the machine meanwhile. A quarter of an hour.
# Usage: scripts/learn.sh [TRIALS]
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" bench
trials="${1:-100}"
# Two of the eight networks with records take two thirds of the time of their searches: the thresholds are tried on them,
# and on those that nothing was learned from, not tuned on them.
tuned="mobilenet_v1 mobilenet_v2 resnet50 vgg16 minilm_l6 gpt2"
checked="densenet121 yolov4 efficientnet_b0 yolov4_tiny vit_tiny shufflenet_v2"

step() { printf '\n== %s\n' "$*"; }

step "Train"
autofuse train --db data/records.db -o models/cpu --search 12
# Thresholds of an older predictor are not those of this one.
rm -f models/cpu/thresholds.json
step "Evaluate"
autofuse evaluate --db data/records.db --unseen data/unseen.db --predictor models/cpu --save
step "Tune the thresholds ($trials trials)"
mkdir -p build docs/results
# A study is about one predictor: with another one it begins anew.
study="build/thresholds-$(sha256sum models/cpu/card.json | cut -c1-12).study"
# shellcheck disable=SC2046,SC2086
autofuse tune $tuned --db data/records.db --predictor models/cpu --trials "$trials" --study "$study" --each \
    $(printf -- '--check %s ' $checked) --json > build/tuning.json
cp build/tuning.json docs/results/tuning.json
step "Plan all networks"
python scripts/replay.py --write
step "Try other objectives for the order of configurations"
python scripts/order_trials.py
step "Write docs/learning.md"
python scripts/learning_page.py --strategies
