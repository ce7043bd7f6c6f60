#!/usr/bin/env bash
# Prints the README of the chart's archive of a version: deploy/README.md, with links to the files of the archive only. A link to another file
# becomes its text, with the path in the archive of the program, and one to the other chart its text with the name of that chart's archive.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1
sed --regexp-extended \
  -e '/^\| path \| content \|$/,/^$/d' \
  -e 's#^(The Helm chart) \[`helm/cofferdam`\]\(helm/cofferdam\)#\1 `cofferdam`#' \
  -e 's#\[([^]]*)\]\(helm/(cofferdam-[a-z-]+)(/[^)]*)?\)#\1 (`\2-'"$version"'.tgz`)#g' \
  -e 's#\]\(helm/cofferdam/#](#g' \
  -e 's#\]\(helm/values/#](examples/#g' \
  -e 's#deploy/helm/values/#cofferdam/examples/#g' \
  -e 's#deploy/helm/(cofferdam(-[a-z]+)*)#\1-'"$version"'.tgz#g' \
  -e 's#\[([^]]*)\]\(\.\./([^)#]*)(\#[^)]*)?\)#\1 (`\2`)#g' \
  -e 's#\[([^]]*)\]\(manifests\)#\1 (`deploy/manifests`)#g' \
  README.md |
  awk -v version="$version" '
    { print }
    NR == 1 {
      print ""
      print "Paths below `docs/` and `deploy/` are those of the archive `cofferdam-" version "-x86_64-linux.tar.gz` of the release."
      print "Those below `cofferdam/` are in this archive."
    }'
