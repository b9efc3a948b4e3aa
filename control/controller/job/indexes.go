package job

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// interval is indexes from the first to the last, both among them.
type interval struct{ first, last int }

// indexes are in order, and no two intervals touch.
type indexes []interval

// parse reads "1,3-5,7". What is no index of so many completions, as after these were made fewer, is left out, and so
// is what cannot be read: the text is of the status, which is ours.
func parse(text string, completions int) indexes {
	var all indexes
	for part := range strings.SplitSeq(text, ",") {
		first, last, is := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if err == nil && is {
			to, err = strconv.Atoi(last)
		}
		if err != nil || from < 0 || to < from || from >= completions {
			continue
		}
		all = append(all, interval{from, min(to, completions-1)})
	}
	return all.normal()
}

func (x indexes) normal() indexes {
	slices.SortFunc(x, func(a, b interval) int { return a.first - b.first })
	var all indexes
	for _, i := range x {
		if n := len(all); n > 0 && i.first <= all[n-1].last+1 {
			all[n-1].last = max(all[n-1].last, i.last)
		} else {
			all = append(all, i)
		}
	}
	return all
}

func (x indexes) with(more []int) indexes {
	all := slices.Clone(x)
	for _, i := range more {
		all = append(all, interval{i, i})
	}
	return all.normal()
}

func (x indexes) find(i int) (int, bool) {
	return slices.BinarySearchFunc(x, i, func(v interval, i int) int {
		switch {
		case v.last < i:
			return -1
		case v.first > i:
			return 1
		}
		return 0
	})
}

func (x indexes) has(i int) bool {
	_, found := x.find(i)
	return found
}

// beyond is the first index from i on that is not among them.
func (x indexes) beyond(i int) int {
	if at, found := x.find(i); found {
		return x[at].last + 1
	}
	return i
}

func (x indexes) count() int {
	n := 0
	for _, i := range x {
		n += i.last - i.first + 1
	}
	return n
}

// common counts those that are in both.
func (x indexes) common(y indexes) int {
	n := 0
	for len(x) > 0 && len(y) > 0 {
		n += max(0, min(x[0].last, y[0].last)-max(x[0].first, y[0].first)+1)
		if x[0].last < y[0].last {
			x = x[1:]
		} else {
			y = y[1:]
		}
	}
	return n
}

// String is how the status has them: two that follow are written as two.
func (x indexes) String() string {
	var parts []string
	for _, i := range x {
		switch i.last - i.first {
		case 0:
			parts = append(parts, strconv.Itoa(i.first))
		case 1:
			parts = append(parts, strconv.Itoa(i.first), strconv.Itoa(i.last))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", i.first, i.last))
		}
	}
	return strings.Join(parts, ",")
}

// indexOf is a pod's index, or -1 of one that has none.
func indexOf(p *corev1.Pod) int {
	i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return -1
	}
	return i
}

// failuresOf is how many pods of its index failed before a pod did: those that count, and all.
func failuresOf(p *corev1.Pod) (counted, all int) {
	read := func(name string) int {
		n, err := strconv.Atoi(p.Annotations[name])
		if err != nil || n < 0 {
			return 0
		}
		return n
	}
	counted = read(batchv1.JobIndexFailureCountAnnotation)
	return counted, counted + read(ignoredFailures)
}

// ignoredFailures is how many failures of an index do not count, which its pods are held back for nonetheless.
const ignoredFailures = "batch.kubernetes.io/job-index-ignored-failure-count"
