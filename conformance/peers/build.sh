#!/usr/bin/env bash
# Builds the programs that we are compared with, from pinned modules, into a cache outside of the tree.
#
#   build.sh            builds what is missing, and says what the machine lacks
#   build.sh where      prints the directory that holds the programs, built or not
#   build.sh previous   builds an older version of Cofferdam from this repository's history
#   build.sh e2e        builds Kubernetes' end-to-end tests
#   build.sh one NAME   builds one program if it is missing, and prints its path; needs Go only
#
# KUBERNETES=1.33 selects the version of Kubernetes: a folder of kubernetes/, whose go.mod has the patch version.
#
# A program is kept under a digest of its line in `programs` and of its sources, so that a change of one program does not
# rebuild the others. <cache>/<digest of all>/bin has a symbolic link to each of them.
set -euo pipefail
cd "$(dirname "$0")"

CACHE=${PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/cofferdam/peers}
GO=${GO:-go}
JOBS=${JOBS:-$(nproc)}
KUBERNETES=${KUBERNETES:-1.36}
# The last version whose journal has no epoch.
PREVIOUS=75d821138f48f418f52094c01c0eb5fa9616be14

missing() {
  echo "make peers: $*" >&2
  exit 1
}

KUBERNETES_SOURCE=kubernetes/$KUBERNETES
[[ -f $KUBERNETES_SOURCE/go.mod ]] || missing "KUBERNETES=$KUBERNETES: expected one of $(cd kubernetes && echo *)"
KUBERNETES_VERSION=$(sed -n 's/^\tk8s.io\/kubernetes \(v[^ ]*\).*/\1/p' "$KUBERNETES_SOURCE/go.mod")
[[ -n $KUBERNETES_VERSION ]] || missing "$KUBERNETES_SOURCE/go.mod has no version of k8s.io/kubernetes"

# Without its version every component of Kubernetes says v0.0.0, and they refuse to work with each other.
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  KUBERNETES_FLAGS="${KUBERNETES_FLAGS:-} -X $package.gitVersion=$KUBERNETES_VERSION -X $package.gitMajor=1 -X $package.gitMinor=${KUBERNETES#1.}"
done

# Without these helm takes the cluster of `helm template` and `helm lint` for Kubernetes 1.20.
for variable in chartutil.k8sVersion lint/rules.k8sVersion; do
  HELM_FLAGS="${HELM_FLAGS:-} -X helm.sh/helm/v3/pkg/${variable}Major=1 -X helm.sh/helm/v3/pkg/${variable}Minor=37"
done

# program | go.mod that pins it, or module@version with its checksum | package | flags of `go build`
# The module proxy's modules (module@version) are built in the module cache, with their own go.mod and go.sum.
programs() {
  cat <<END
etcd|etcd|go.etcd.io/etcd/server/v3|
kube-apiserver|$KUBERNETES_SOURCE|k8s.io/kubernetes/cmd/kube-apiserver|
kube-controller-manager|$KUBERNETES_SOURCE|k8s.io/kubernetes/cmd/kube-controller-manager|
csi-driver|../driver|.|
csi-provisioner|github.com/kubernetes-csi/external-provisioner/v6@v6.3.0 h1:cC5Y10GbdTHXUTBBz0g7jKZKm7AJJk586WV5rVNWdck=|./cmd/csi-provisioner|
kubelet|$KUBERNETES_SOURCE|k8s.io/kubernetes/cmd/kubelet|
containerd|github.com/containerd/containerd/v2@v2.2.0 h1:K7TqcXy+LnFmZaui2DgHsnp2gAHhVNWYaHlx7HXfys8=|./cmd/containerd|-tags=no_btrfs,no_zfs
containerd-shim-runc-v2|github.com/containerd/containerd/v2@v2.2.0 h1:K7TqcXy+LnFmZaui2DgHsnp2gAHhVNWYaHlx7HXfys8=|./cmd/containerd-shim-runc-v2|
ctr|github.com/containerd/containerd/v2@v2.2.0 h1:K7TqcXy+LnFmZaui2DgHsnp2gAHhVNWYaHlx7HXfys8=|./cmd/ctr|
kube-scheduler|$KUBERNETES_SOURCE|k8s.io/kubernetes/cmd/kube-scheduler|
kubectl|$KUBERNETES_SOURCE|k8s.io/kubernetes/cmd/kubectl|
csi-sanity|github.com/kubernetes-csi/csi-test/v5@v5.6.0 h1:fQgB/CRoqTEAtlHwfD0Y785LjQJ/OxNGUE7AHw68VLg=|./cmd/csi-sanity|
csi-attacher|github.com/kubernetes-csi/external-attacher/v4@v4.13.0 h1:lvr4pjyBc6TV57EB78mNrsg/KgaGFL5wc4Xe/i9Y+bM=|./cmd/csi-attacher|
csi-resizer|github.com/kubernetes-csi/external-resizer/v2@v2.3.0 h1:dsdHhB3s4BJUkO7Jaemd6hw3YEms1ZlMF/bksbDE+bw=|./cmd/csi-resizer|
csi-snapshotter|external-snapshotter|github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter|
snapshot-controller|external-snapshotter|github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller|
helm|helm.sh/helm/v3@v3.22.0 h1:n1if5iQgHYsujPAcO5oonH/KiSNUmqmUF0iGVjSF3AU=|./cmd/helm|
helm4|helm.sh/helm/v4@v4.3.1 h1:UndCoLe9UPmNoL7IvWzaUXveL7T5t/ijoorEmgJdI9g=|./cmd/helm|
END
}

# Files of a module: name | module@version with its checksum | directory in the module
files() {
  cat <<END
snapshot-crds|github.com/kubernetes-csi/external-snapshotter/client/v8@v8.7.0 h1:HVaSUeRRHPu49aSiL8eXOjS9Re9G6pM0NzdTGI7mM14=|config/crd
END
}

# Programs of Debian: a file, and the package that contains it.
distribution() {
  cat <<END
/usr/sbin/runc|runc
/bin/busybox|busybox-static
/usr/lib/cni/ptp|containernetworking-plugins
/usr/bin/faketime|faketime
/usr/bin/strace|strace
/usr/bin/ip|iproute2
/usr/bin/openssl|openssl
/usr/sbin/mkfs.ext4|e2fsprogs
/usr/sbin/mkfs.xfs|xfsprogs
END
}

# The directory name of a program: its name, and a digest of its line above and of the sources that the line names.
key() {
  local name=$1 source=$2 line=$3
  {
    echo "$line"
    case $source in
      kubernetes/*) echo "$KUBERNETES_FLAGS" ;;
    esac
    case $source in
      *@*) ;;
      *) find "$source" -type f \( -name '*.go' -o -name go.mod -o -name go.sum \) | LC_ALL=C sort | xargs cat ;;
    esac
  } | sha256sum | cut -c 1-16 | sed "s/^/$name-/"
}

keys() {
  local name source package flags
  while IFS='|' read -r name source package flags; do
    key "$name" "$source" "$name|$source|$package|$flags"
  done < <(programs)
  while IFS='|' read -r name source package; do
    key "$name" "$source" "$name|$source|$package"
  done < <(files)
}

where() {
  echo "$CACHE/$(keys | sha256sum | cut -c 1-16)/bin"
}

# Compares the checksum: go.sum does not contain a module that no go.mod of this repository requires.
module_directory() {
  local module=${1% h1:*} sum=h1:${1#* h1:} answer
  answer=$($GO mod download -json "$module") || missing "$module does not come from the Go module proxy: $answer"
  [[ $answer == *"\"Sum\": \"$sum\""* ]] || missing "$module is not what it was: expected $sum, have $answer"
  sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$answer"
}

build() {
  local name=$1 source=$2 package=$3 flags=$4 out=$5 directory linker=-w started=$SECONDS
  case $source in
    *@*)
      directory=$(module_directory "$source")
      source=${source% h1:*}
      linker="-w -X main.version=${source#*@} -X github.com/containerd/containerd/v2/version.Version=${source#*@} $HELM_FLAGS"
      ;;
    kubernetes/*)
      directory=$source
      linker="-w $KUBERNETES_FLAGS"
      ;;
    *) directory=$source ;;
  esac
  echo "make peers: building $name" >&2
  # The build must not depend on the user's GOFLAGS and GOWORK.
  CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off $GO build -C "$directory" -p "$JOBS" -trimpath -buildvcs=false ${flags:+"$flags"} \
    -ldflags "$linker" -o "$out" "$package"
  echo "make peers: built $name in $((SECONDS - started)) s" >&2
}

# Builds the older version. The target directory is another one, because cargo takes the crates of both versions for the same.
previous() {
  local target=$CACHE/cofferdam-$PREVIOUS bin repository sources started=$SECONDS
  lock
  bin=$(where)
  mkdir -p "$bin"
  ln -sfn "../../${target##*/}" "$bin/cofferdam-previous"
  [[ ! -x $target ]] || return 0
  repository=$(git rev-parse --show-toplevel) || missing "$PWD is not in a git repository: expected one, whose history has $PREVIOUS"
  git cat-file -e "$PREVIOUS^{commit}" 2>/dev/null || missing "the history lacks $PREVIOUS: run git fetch --unshallow"
  echo "make peers: building cofferdam $PREVIOUS" >&2
  sources=$CACHE/sources-$PREVIOUS
  rm -rf "$sources"
  mkdir -p "$sources"
  git -C "$repository" archive "$PREVIOUS" | tar --extract --directory "$sources"
  (
    cd "$sources"
    # Until version 0.1.0, conformance had a profile of its own.
    profile=()
    [ -f conformance/build.toml ] && profile=(--config conformance/build.toml)
    CARGO_TARGET_DIR=$sources/target "${CARGO:-cargo}" build --quiet --locked "${profile[@]}" --bin cofferdam
  )
  cp "$sources/target/debug/cofferdam" "$target.new"
  mv "$target.new" "$target"
  rm -rf "$sources"
  echo "make peers: built cofferdam $PREVIOUS in $((SECONDS - started)) s" >&2
}

# Builds Kubernetes' end-to-end tests, a test binary, for the version in external-storage/go.mod.
e2e() {
  local source=external-storage package=k8s.io/kubernetes/test/e2e target bin started=$SECONDS
  needs_go
  lock
  target=$(path e2e.test "$source" "$package" "")
  bin=$(where)
  mkdir -p "$bin" "${target%/*}"
  ln -sfn "../../$(basename "${target%/*}")/e2e.test" "$bin/e2e.test"
  [[ ! -x $target ]] || return 0
  echo "make peers: building e2e.test" >&2
  CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off $GO test -C "$source" -c -p "$JOBS" -trimpath -ldflags -w -o "$target.new" "$package"
  mv "$target.new" "$target"
  echo "make peers: built e2e.test in $((SECONDS - started)) s" >&2
}

needs_go() {
  command -v "$GO" >/dev/null || missing "Go is missing: expected the command $GO, version 1.26, or one that fetches it by itself (https://go.dev/dl)"
}

needs() {
  local file package lacking=()
  needs_go
  while IFS='|' read -r file package; do
    [[ -e $file ]] || lacking+=("$package")
  done < <(distribution)
  [[ ${#lacking[@]} -eq 0 ]] && return
  command -v apt-get >/dev/null || missing "${lacking[*]} missing: expected $(distribution | cut -d '|' -f 1 | paste -sd ' ')"
  [[ $(id -u) -eq 0 ]] || missing "Debian packages missing: run as root, or: apt-get install --no-install-recommends ${lacking[*]}"
  echo "make peers: installing ${lacking[*]}" >&2
  { DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${lacking[@]}" \
    || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${lacking[@]}"; }; } >&2 \
    || missing "Debian packages missing: apt-get could not install ${lacking[*]}"
}

# Two builds at once would do the same work twice.
lock() {
  mkdir -p "$CACHE"
  exec 9>"$CACHE/lock"
  flock -n 9 || { echo "make peers: waiting for another build" >&2; flock 9; }
}

# Prints the path of a program in the cache.
path() {
  local name=$1 source=$2 package=$3 flags=$4
  echo "$CACHE/$(key "$name" "$source" "$name|$source|$package|$flags")/$name"
}

# Builds a program if it is missing.
ensure() {
  local target=$1 name=$2 source=$3 package=$4 flags=$5
  [[ ! -x $target ]] || return 0
  mkdir -p "${target%/*}"
  build "$name" "$source" "$package" "$flags" "$target.new"
  mv "$target.new" "$target"
}

# Copies the files of a module, whose own directory is read-only.
copy() {
  local target=$1 source=$2 path=$3 directory
  [[ ! -d $target ]] || return 0
  directory=$(module_directory "$source")
  rm -rf "$target.new"
  cp -r "$directory/$path" "$target.new"
  chmod -R u+w "$target.new"
  mv "$target.new" "$target"
}

all() {
  local name source package flags target bin
  needs
  lock
  bin=$(where)
  mkdir -p "$bin"
  while IFS='|' read -r name source package flags; do
    target=$(path "$name" "$source" "$package" "$flags")
    ensure "$target" "$name" "$source" "$package" "$flags"
    ln -sfn "../../$(basename "${target%/*}")/$name" "$bin/$name"
  done < <(programs)
  while IFS='|' read -r name source package; do
    target=$CACHE/$(key "$name" "$source" "$name|$source|$package")
    copy "$target" "$source" "$package"
    ln -sfn "../../${target##*/}" "$bin/$name"
  done < <(files)
  echo "make peers: $(programs | wc -l) programs in $bin" >&2
}

one() {
  local wanted=$1 name source package flags target
  needs_go
  while IFS='|' read -r name source package flags; do
    [[ $name == "$wanted" ]] || continue
    target=$(path "$name" "$source" "$package" "$flags")
    if [[ ! -x $target ]]; then
      lock
      ensure "$target" "$name" "$source" "$package" "$flags"
    fi
    echo "$target"
    return
  done < <(programs)
  missing "unknown program $wanted: expected one of $(programs | cut -d '|' -f 1 | paste -sd ' ')"
}

case ${1:-} in
  where) where ;;
  previous) previous ;;
  e2e) e2e ;;
  one) one "${2:?expected the name of a program}" ;;
  "") all ;;
  *) missing "unknown argument $1: expected where, previous, e2e, one, or none" ;;
esac
