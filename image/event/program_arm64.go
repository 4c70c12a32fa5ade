package event

import _ "embed"

//go:embed event_arm64.elf
var program []byte
