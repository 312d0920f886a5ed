#!/usr/bin/env bash
# Draws docs/demo.svg, the picture in the README, from a real run of the example: why a call is denied, what a change would
# do to recent requests, and an edit that is refused.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
profile=${PROFILE:-release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_STATE_HOME=$work/state PATH=$root/target/$profile:$PATH
cp -r "$root/examples/capitals" "$work/capitals"
cd "$work"

cat > read-only.yaml <<'YAML'
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: capitals-web, namespace: capitals}
spec:
  selector: {matchLabels: {app: capitals-web}}
  rules: [{to: [{operation: {methods: [GET]}}]}]
YAML
sed 's/weight: 90/wieght: 90/' capitals/routing.yaml > routing.yaml

"$root/scripts/terminal-svg.py" "$root/docs/demo.svg" --until 'ready +istio-ingressgateway|istio-ingressgateway +yes' \
    --unseen 'for i in $(seq 40); do curl -s -o /dev/null http://127.0.0.1:8080/api/capitals/France; done' \
    --unseen 'for i in 1 2 3; do curl -s -o /dev/null -d "{}" http://127.0.0.1:8080/api/capitals; done' \
    --then 7 'evenkeel explain -f capitals \
    --from capitals-info-v1 \
    --url http://capitals-info:8080/' \
    --then 8 'evenkeel plan -f read-only.yaml' \
    --then 10 'evenkeel apply -f routing.yaml' \
    -- evenkeel up capitals
