package keeper

import (
	"testing"
	"time"
)

// AnswerWithin sets how long a keeper may take for an answer, for one test.
func AnswerWithin(t testing.TB, d time.Duration) {
	before, dead := answer, killed
	answer, killed = d, d
	t.Cleanup(func() { answer, killed = before, dead })
}
