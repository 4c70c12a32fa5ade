package guest

import _ "embed"

//go:embed probe_arm64
var probe []byte
