package event

import _ "embed"

//go:embed event_amd64.elf
var program []byte
