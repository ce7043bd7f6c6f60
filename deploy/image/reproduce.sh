#!/usr/bin/env bash
# Builds the images of HEAD in two directories whose paths differ in length, and compares the layouts.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
directories=("$work/a" "$work/another-directory/b")
for directory in "${directories[@]}"; do
  mkdir -p "$directory"
  git archive HEAD | tar --extract --directory "$directory"
  make --directory "$directory" image
done
builder="${directories[0]}/target/image-build/release/cofferdam-image"
"$builder" compare "${directories[0]}/target/image" "${directories[1]}/target/image" || {
  echo "make image-reproduce: the images depend on the directory" >&2
  exit 1
}
echo "equal: index sha256:$(sha256sum <"${directories[0]}/target/image/index.json" | cut -d' ' -f1)"
