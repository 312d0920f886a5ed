#!/usr/bin/env bash
# Draws docs/demo.svg, the picture in the README, from a real run of the example.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export XDG_STATE_HOME=/var/tmp PATH=$PWD/target/release:$PATH

ready='(capitals-\S+ +yes[^\n]*\n\s*){4}istio-ingressgateway +yes.*http://127\.0\.0\.1:8080/'
scripts/terminal-svg.py docs/demo.svg --until "$ready" \
    --then "curl -s http://127.0.0.1:8080/api/capitals/France" \
    --then "for i in \$(seq 100); do curl -s -o /dev/null -w '%header{x-version}\n' http://127.0.0.1:8080/api/capitals/France; done | sort | uniq -c" \
    --then "evenkeel exec capitals-info-v1 -- curl -s http://capitals-info:8080/capitals/France" \
    -- evenkeel up examples/capitals
