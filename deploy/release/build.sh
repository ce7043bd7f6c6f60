#!/usr/bin/env bash
# Writes the files of a release to target/dist: program, images, charts, bills of materials, changelog and checksums.
#
# The version is that of Cargo.toml. SOURCE_DATE_EPOCH is the time of all files, by default that of the last commit.
set -euo pipefail
# The order of names must not depend on the user's language.
export LC_ALL=C
cd "$(dirname "$0")/../.."

fail() {
  echo "make release: $*" >&2
  exit 1
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
architecture=$(uname -m)
name=cofferdam-$version
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

[[ -z $(git status --porcelain) ]] || fail "the working tree has changes: expected a commit, so that others can build the same"
grep -q "^## \[$version\] - " CHANGELOG.md || fail "CHANGELOG.md has no section of version $version: expected '## [$version] - DATE'"
! grep -q '^## \[Unreleased\]' CHANGELOG.md || fail "CHANGELOG.md has unreleased changes: expected them in a section of a version"
for key in version appVersion; do
  grep -qE "^$key: \"?$version\"?$" deploy/helm/cofferdam/Chart.yaml ||
    fail "deploy/helm/cofferdam/Chart.yaml: expected $key $version"
done
grep -qE "^version: \"?$version\"?$" deploy/helm/cofferdam-snapshot-crds/Chart.yaml ||
  fail "deploy/helm/cofferdam-snapshot-crds/Chart.yaml: expected version $version"

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
deploy/release/documents.sh "$work"
make image
helm=$(conformance/peers/build.sh one helm)
program=target/image-build/cofferdam

dist=target/dist
rm -rf "$dist"
mkdir -p "$dist"

# Order, times, owners and modes do not depend on the machine.
archive() {
  local output=$1
  shift
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w \
    --create --file - "$@" | gzip --no-name --best >"$output"
}

root=$name-$architecture-linux
mv "$work/program" "$work/$root"
mkdir "$work/$root/completions"
install --mode=0755 "$program" "$work/$root/cofferdam"
ln -s cofferdam "$work/$root/kubectl-cofferdam"
"$program" completions bash >"$work/$root/completions/cofferdam.bash"
"$program" completions zsh >"$work/$root/completions/_cofferdam"
"$program" completions fish >"$work/$root/completions/cofferdam.fish"
mkdir "$work/$root/drivers"
for driver in memory pool; do
  cp "target/image-build/guests/wasm32-wasip2/guest/cofferdam_backend_$driver.wasm" "$work/$root/drivers/$driver.wasm"
done
archive "$dist/$root.tar.gz" --directory "$work" "$root"

archive "$dist/$name.tgz" --directory "$work/charts" cofferdam
lint() {
  "$helm" lint --strict "$@" >"$work/lint" || { cat "$work/lint" >&2; fail "helm does not accept the chart $1"; }
}
lint "$dist/$name.tgz" --values deploy/helm/values/component.yaml
archive "$dist/cofferdam-snapshot-crds-$version.tgz" --directory "$work/charts" cofferdam-snapshot-crds
lint "$dist/cofferdam-snapshot-crds-$version.tgz"

cp target/image.tar "$dist/$name-$architecture-images.tar"
for bill in target/image/sbom/*; do
  image=$(basename "$bill" .cdx.json)
  cp "$bill" "$dist/$image-$version-$architecture.cdx.json"
done
cp CHANGELOG.md "$dist/"
(cd "$dist" && sha256sum -- * >SHA256SUMS)

digest=sha256:$(sha256sum <target/image/index.json | cut -d ' ' -f 1)
(cd "$dist" && du --apparent-size --human-readable -- *)
echo "make release: $dist; line of deploy/release/digests:"
echo "$version $architecture $(git rev-parse HEAD) $SOURCE_DATE_EPOCH $digest"
