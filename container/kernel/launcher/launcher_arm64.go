package launcher

import _ "embed"

//go:embed launcher_arm64.elf
var code []byte
