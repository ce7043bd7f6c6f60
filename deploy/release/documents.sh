#!/usr/bin/env bash
# Writes the documents of a release's archives: those of the program, and the charts with their READMEs.
#
#   documents.sh DIRECTORY   writes DIRECTORY/program and DIRECTORY/charts
#   documents.sh check       writes them to a temporary directory
#
# Fails if a document links to a file that its archive lacks, or names a chart's archive that no release has.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

fail() {
  echo "documents.sh: $*" >&2
  exit 1
}

[[ $# -eq 1 ]] || fail "$# arguments: expected a directory, or check"
output=$1
if [[ $output == check ]]; then
  output=$(mktemp --directory)
  trap 'rm -rf "$output"' EXIT
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
program=$output/program
charts=$output/charts

# Copies files of the working tree that git does not ignore. Their links are checked before they are committed.
copy() {
  local directory=$1 file
  shift
  mkdir -p "$directory"
  git ls-files -z --cached --others --exclude-standard --deduplicate -- "$@" |
    while IFS= read -r -d '' file; do
      # git still lists a file that was deleted.
      [[ ! -e $file && ! -L $file ]] || printf '%s\0' "$file"
    done |
    tar --create --null --files-from=- | tar --extract --directory "$directory"
}

check_links() {
  local directory=$1 page link target
  shift
  while IFS=: read -r page link; do
    target=${link%%#*}
    [[ -z $target || -e $directory/$(dirname "$page")/$target ]] || fail "the archive lacks $link, which $page names"
  done < <(cd "$directory" && grep -roPH --include='*.md' '\]\(\K(?!https?:|mailto:)[^) ]+(?=\))' "$@")
}

# VERSION stands for a version in general.
check_archive_names() {
  local directory=$1 page name
  shift
  while IFS=: read -r page name; do
    case $name in
      cofferdam-"$version".tgz | cofferdam-snapshot-crds-"$version".tgz) ;;
      cofferdam-VERSION.tgz | cofferdam-snapshot-crds-VERSION.tgz) ;;
      *) fail "$page names the archive $name: expected cofferdam-$version.tgz or cofferdam-snapshot-crds-$version.tgz" ;;
    esac
  done < <(cd "$directory" && grep -roPH --include='*.md' '[A-Za-z0-9._-]*\.tgz[A-Za-z0-9._-]*' "$@" | sed 's/\.$//')
}

# The documents, and the files to which they link.
copy "$program" README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md docs wit guest-sdk examples samples deploy \
  conformance/README.md conformance/strangers
pages=(README.md docs deploy/README.md deploy/helm/cofferdam-snapshot-crds/README.md)
check_links "$program" "${pages[@]}"
check_archive_names "$program" "${pages[@]}"

mkdir -p "$charts"
for chart in cofferdam cofferdam-snapshot-crds; do
  cp -R "$program/deploy/helm/$chart" "$charts/"
done
deploy/release/chart-readme.sh "$version" >"$charts/cofferdam/README.md"
mkdir "$charts/cofferdam/examples"
cp "$program"/deploy/helm/values/*.yaml "$charts/cofferdam/examples/"
for chart in cofferdam cofferdam-snapshot-crds; do
  check_links "$charts/$chart" README.md
  check_archive_names "$charts/$chart" README.md
done
