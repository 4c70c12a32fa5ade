package launcher

import _ "embed"

//go:embed launcher_amd64.elf
var code []byte
