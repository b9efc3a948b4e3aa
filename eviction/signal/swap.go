package signal

import (
	"os"
	"sync"
	"time"
)

// swapWalk is how old the figures of each group may be. What is swapped meanwhile is known of all of them together.
const swapWalk = time.Second

// swappable is what groups have in memory that may go to swap. The kernel takes it before anybody has to die, and
// MemAvailable does not count it. It is of v2, where each group has a limit of swap of its own.
type swappable struct {
	dir string // the group below which all are that may swap

	mu     sync.Mutex
	walked time.Time
	amount int64 // then
	swap   int64 // of all, then
}

// now is how much of it free swap has room for.
func (s *swappable) now(free int64) int64 {
	if s == nil || free <= 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	swap := readOr(s.dir+"/memory.swap.current", 0)
	if time.Since(s.walked) >= swapWalk {
		s.amount, s.swap, s.walked = swappableOf(s.dir, levels), swap, time.Now()
	}
	return min(free, max(0, s.amount-max(0, swap-s.swap)))
}

// levels are those below a class: pods, and containers. What containers have made is theirs.
const levels = 2

// swappableOf is what a group has in memory that its own limit of swap, and those of the groups in it, let it swap.
// What cannot be read is nothing.
func swappableOf(dir string, below int) int64 {
	var room [usual]byte
	stat, err := readFigures(dir+"/memory.stat", room[:])
	if err != nil {
		return 0
	}
	has := add(stat.get("inactive_anon"), stat.get("active_anon")) // with what is shared, and in tmpfs
	limit := readOr(dir+"/memory.swap.max", 0)
	if limit != unlimited {
		has = min(has, max(0, limit-readOr(dir+"/memory.swap.current", 0)))
	}
	if below == 0 || has == 0 {
		return has
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	var sum int64
	groups := false
	for _, e := range entries {
		if e.IsDir() {
			groups, sum = true, add(sum, swappableOf(dir+"/"+e.Name(), below-1))
		}
	}
	if !groups {
		return has
	}
	return min(has, sum)
}

// readOr is the number in a file, or another one.
func readOr(path string, other int64) int64 {
	n, err := readNumber(path)
	if err != nil {
		return other
	}
	return n
}
