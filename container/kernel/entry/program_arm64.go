package entry

import _ "embed"

//go:embed entry_arm64
var program []byte
