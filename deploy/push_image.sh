#!/bin/sh
# push_image.sh NAME:TAG INDEX ARCHIVE...: push an image of several architectures, to the byte: skopeo changes no digest.
# INDEX is a file of the release, which names the image of each ARCHIVE. Prints the digest of the index.
# SKOPEO_FLAGS: more flags for skopeo copy.
set -eu
name=${1:-}
case ${name##*/}:$# in
*:*:[3-9]*) ;;
*) echo "usage: push_image.sh NAME:TAG INDEX ARCHIVE..." >&2 && exit 2 ;;
esac
index=$2
shift 2
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT
for archive; do tar -xf "$archive" -C "$layout"; done
digest=$(sha256sum "$index")
digest=${digest%% *}
cp "$index" "$layout/blobs/sha256/$digest"
printf '{"schemaVersion": 2, "manifests": [{"mediaType": "%s", "digest": "sha256:%s", "size": %d}]}' \
  application/vnd.oci.image.index.v1+json "$digest" "$(stat -c %s "$index")" >"$layout/index.json"
# shellcheck disable=SC2086 # several flags
skopeo copy --quiet --all --preserve-digests ${SKOPEO_FLAGS:-} "oci:$layout" "docker://$name"
echo "sha256:$digest"
