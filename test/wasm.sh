#!/bin/sh
# Makes the archive of an image that is a WebAssembly module and nothing else.
set -eu
out=$1
GOOS=wasip1 GOARCH=wasm go build -trimpath -ldflags '-s -w' -o "$out.wasm" ./cri/testdata/module
CGO_ENABLED=0 go run -trimpath ./test/mkimage -o "$out" -name berth.test/wasm:1 -entrypoint /app.wasm /app.wasm="$out.wasm"
rm "$out.wasm"
