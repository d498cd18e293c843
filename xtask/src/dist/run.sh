#!/usr/bin/env bash
# Runs the checks of this folder on a machine with an NVIDIA GPU. Rust and a CUDA toolkit are not needed; Python with
# PyTorch is used where it is there. With `quick` as the argument, fewer cases. If SANITIZER names NVIDIA's
# compute-sanitizer, the GPU tests run under its memcheck as well.
set -u
cd "$(dirname "$0")" || exit 2
quick=${1:-}
passed=0 failed=0
# Where cargo would have the tests run and look for their files.
export CARGO_MANIFEST_DIR="$PWD"

# A program that ends well where it finds no GPU: here it has to find one.
ran() {
    local said code=0
    said=$("$@" 2>&1) || code=$?
    echo "$said"
    [ "$code" -eq 0 ] && ! grep -qE 'SKIPPED|status 2' <<<"$said"
}

check() {
    echo "== $*"
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $*"; fi
}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; then
    echo "no NVIDIA GPU here"
    exit 2
fi

for tests in gpu-tests/*; do
    if [ -x "$tests" ]; then
        check "$tests" gpu::
        if [ -n "${SANITIZER:-}" ]; then check "$SANITIZER" --tool memcheck --error-exitcode 1 "$tests" gpu::; fi
    fi
done

for example in examples/*; do
    check ran "$example"
done

dims="32 64 72 128 256"
if [ "$quick" = quick ]; then dims="64 128"; fi
for dtype in f16 bf16 f32; do
    for dim in $dims; do
        for causal in false true; do
            check ./compare --device cuda --dtype $dtype --head-dim "$dim" --causal $causal
        done
    done
done
for file in tests/fixtures/*.safetensors; do
    if [ -e "$file" ]; then
        check ./compare --device cuda --input "$file"
        check ./compare --device cuda --input "$file" --causal
    fi
done

if python3 -c 'import torch' 2>/dev/null && [ -e python/check_pytorch.py ]; then
    check python3 python/check_pytorch.py ./libflash_attention.so ${quick:+--quick}
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
