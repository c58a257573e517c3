package compose

// Reasons a module does not go out. They are stored, shown and documented; a person has to
// do something about each.
const (
	SecretNotGiven    = "SecretNotGiven"    // declared as given, and nobody gave it
	SecretNotMade     = "SecretNotMade"     // generated or granted, and not made yet
	SecretNotUsable   = "SecretNotUsable"   // sealed to a key the node no longer has
	Unresolved        = "Unresolved"        // nothing provides what it requires
	Ambiguous         = "Ambiguous"         // several provide it and the assignment binds none
	NotBuilt          = "NotBuilt"          // the mesh holds no manifest of it
	CapabilityMissing = "CapabilityMissing" // the node does not report what it needs
	ClaimHeld         = "ClaimHeld"         // another module of the node holds its claim
	PathConflict      = "PathConflict"      // another resource owns its path
	SettingMissing    = "SettingMissing"    // a setting without default has no value
	SettingInvalid    = "SettingInvalid"    // a value is not of the setting's type or range
	UnknownReference  = "UnknownReference"  // a ${…} names nothing
	PlatformMissing   = "PlatformMissing"   // not built for the node's platform
	ArtifactKeyword   = "ArtifactKeyword"   // a manifest still says "artifact"
	SchemaTooNew      = "SchemaTooNew"      // the node's host does not know the document yet
	DependencyCycle   = "DependencyCycle"   // its resources wait for each other
)
