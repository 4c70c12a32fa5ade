// Package event has the program weir-event, which images of functions get: scripts raise events with it, and tell numbers. Its source is event.c; what it does is
// in its usage. The package owns the program's binaries, and nothing of the sockets that it speaks to.
package event

//go:generate clang --target=x86_64-linux-gnu -Os -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-stack-protector -fno-asynchronous-unwind-tables -fno-pic -nostdlib -static -fuse-ld=lld -Wl,--build-id=none,-z,noexecstack,-z,norelro,--strip-all -o event_amd64.elf event.c
//go:generate clang --target=aarch64-linux-gnu -Os -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-stack-protector -fno-asynchronous-unwind-tables -fno-pic -nostdlib -static -fuse-ld=lld -Wl,--build-id=none,-z,noexecstack,-z,norelro,--strip-all -o event_arm64.elf event.c
//go:generate sh -c "{ clang --version | head -n 1; sha256sum event.c; } >event.sum"

// Path of the program in an image.
const Path = "/usr/bin/weir-event"

// Program is weir-event for this machine's processor; nil: there is none.
func Program() []byte { return program }
