//go:build race

package schema

// raceDetector: processor times mean nothing under the race detector.
const raceDetector = true
