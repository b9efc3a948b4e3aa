package controller

import "time"

// longest is how many seconds count, of any number that an object may have: a duration ends with 292 years, and what is
// longer comes round to what is negative.
const longest = 100 * 365 * 24 * 60 * 60

// Seconds is a number of them as a duration. Who writes the largest there is means for ever, and not at once.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, -longest), longest)) * time.Second
}
