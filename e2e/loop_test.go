package e2e

import "testing"

// The reference's own check of the loop, from a commit to a machine that runs what the source
// says: still the old one until pushed, and no longer behind once caught up.
func TestS1_079_AfterPushAndApplyTheNodeRunsWhatTheSourceSays(t *testing.T) {
	theMesh(t).script("loop")
}

func TestS1_074_ACommitBetweenNoticingAndBuildingIsWhatIsBuilt(t *testing.T) {
	theMesh(t).script("moves")
}

func TestS1_002_OfTwoModulesOneIsBuiltAndPushedByItself(t *testing.T) {
	theMesh(t).script("several")
}

func TestS1_076_BuildingDeliversNothing(t *testing.T) {
	theMesh(t).script("building")
}

func TestS1_080_AModuleIsBehindUntilBuiltAndANodeUntilApplied(t *testing.T) {
	theMesh(t).script("behind")
}
