package platform

// Names of settings that a platform may have by its nature.
const (
	SettingTSO       = "TSO"
	SettingGSO       = "GSO"
	SettingGRO       = "GRO"
	SettingChecksums = "checksums"
)
