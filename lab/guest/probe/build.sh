#!/bin/sh
# Build probe.c for each processor. It needs clang, lld and the kernel's headers, of one processor: what it takes of them is the same on both.
set -eu
for a in amd64:x86_64 arm64:aarch64; do
	clang --target="${a#*:}-linux-gnu" -O2 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-builtin -fno-asynchronous-unwind-tables -fno-pic -static \
		-nostdlib -nostdinc -I/usr/include -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu \
		-fuse-ld=lld -Wl,-z,noexecstack,-z,noseparate-code,--build-id=none,-s -o "../probe_${a%:*}" probe.c
	chmod 644 "../probe_${a%:*}"
done
