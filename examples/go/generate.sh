#!/usr/bin/env bash
# Generates the Go code of the services from proto/duramen/v1.
#   generate.sh [DIR]     into DIR, by default into duramenv1 beside this file
# It needs protoc, or a command that does the work of protoc in PROTOC. go.mod pins the two plugins.
set -euo pipefail
mkdir -p "${1:-$(dirname "${BASH_SOURCE[0]}")/duramenv1}"
out=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/duramenv1}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")"

package=github.com/duramen/duramen/examples/go/duramenv1
options=()
for file in ../../proto/duramen/v1/*.proto; do
    name=duramen/v1/$(basename "$file")
    options+=("--go_opt=M$name=$package" "--go-grpc_opt=M$name=$package")
done
# PROTOC may have arguments.
${PROTOC:-protoc} \
    --plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
    --plugin=protoc-gen-go-grpc="$(go tool -n protoc-gen-go-grpc)" \
    --go_out="$out" --go_opt=module="$package" \
    --go-grpc_out="$out" --go-grpc_opt=module="$package" \
    "${options[@]}" -I ../../proto ../../proto/duramen/v1/*.proto
