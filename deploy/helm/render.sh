#!/usr/bin/env bash
# Renders deploy/manifests from the chart.
#
#   render.sh         writes the manifests
#   render.sh check   fails if they differ from what the chart renders, or if `helm lint` complains
#
# HELM is the program, by default helm 3 as conformance/peers/build.sh builds it. Helm 4 renders other blank lines.
set -euo pipefail
cd "$(dirname "$0")"

HELM=${HELM:-$(../../conformance/peers/build.sh one helm)}
MANIFESTS=../manifests

render() {
  local directory=$1 values name
  for values in values/*.yaml; do
    name=$(basename "$values")
    # The name of the release is that of the StorageClass in the values.
    "$HELM" template "$(release "$name")" cofferdam --no-hooks --namespace storage --kube-version 1.36.0 --values "$values" |
      policies_first >"$directory/$name"
  done
}

# Helm writes kinds without an order of its own last; the policies restrict the rights from the beginning.
policies_first() {
  awk 'BEGIN { RS = "---\n"; ORS = "" }
    NR == 1 { next }
    /\nkind: ValidatingAdmissionPolicy/ { first = first RS $0; next }
    { others = others RS $0 }
    END { print first others }'
}

release() {
  case $1 in
    pool.yaml) echo pool ;;
    *) echo my-array ;;
  esac
}

case ${1:-} in
  "") render "$MANIFESTS" ;;
  check)
    for values in values/*.yaml; do
      "$HELM" lint cofferdam --strict --quiet --namespace storage --values "$values"
    done
    rendered=$(mktemp -d)
    trap 'rm -rf "$rendered"' EXIT
    render "$rendered"
    diff --recursive --unified "$MANIFESTS" "$rendered" >&2 || {
      echo "render.sh: deploy/manifests differs from what the chart renders: run make manifests" >&2
      exit 1
    }
    ;;
  *)
    echo "render.sh: unknown argument $1: expected check, or none" >&2
    exit 1
    ;;
esac
