package cronjob

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/berth-node/berth/control/controller"
)

// many is how many starts may have been missed before it is worth a word.
const many = 100

// errZone says that there is no such time zone.
var errZone = errors.New("unknown time zone")

// scheduleOf is when a cron job is to start jobs.
func scheduleOf(c *batchv1.CronJob) (cron.Schedule, error) {
	text := c.Spec.Schedule
	if z := c.Spec.TimeZone; z != nil {
		if _, err := time.LoadLocation(*z); err != nil {
			return nil, fmt.Errorf("%w %q: %w", errZone, *z, err)
		}
		// A zone within the schedule is refused by the API beside this one; of an old object the field counts.
		if fields := strings.Fields(text); len(fields) > 0 && strings.Contains(fields[0], "TZ=") {
			text = strings.Join(fields[1:], " ")
		}
		text = "TZ=" + *z + " " + text
	}
	return cron.ParseStandard(text)
}

// missed is the last start that is not later than now, of those after one time, and how many there are, counted to a
// bound. The zero time: there is none.
func missed(s cron.Schedule, after, now time.Time) (last time.Time, count int) {
	at := after
	for count <= many {
		next := s.Next(at)
		if next.IsZero() || next.After(now) {
			return last, count
		}
		last, at = next, next
		count++
	}
	// Years of starts are not counted one by one: the last one is looked for from its end.
	for window := time.Minute; ; window *= 2 {
		from := now.Add(-window)
		if !from.After(at) {
			from = at
		}
		next := s.Next(from)
		if next.IsZero() || next.After(now) {
			if from.Equal(at) {
				return last, count
			}
			continue
		}
		for ; !next.IsZero() && !next.After(now); next = s.Next(next) {
			last = next
		}
		return last, count
	}
}

// since is from when on starts count that were missed.
func since(c *batchv1.CronJob, now time.Time) time.Time {
	from := c.CreationTimestamp.Time
	if c.Status.LastScheduleTime != nil {
		from = c.Status.LastScheduleTime.Time
	}
	if d := c.Spec.StartingDeadlineSeconds; d != nil {
		if earliest := now.Add(-controller.Seconds(*d)); earliest.After(from) {
			from = earliest
		}
	}
	return from
}

// started says whether a start is of a minute that has its job. A schedule may name each second ("@every 1s"), but a
// job has the minute of its start in its name, as with Kubernetes: further starts of a minute would each be refused,
// read and written down, for ever.
func started(c *batchv1.CronJob, at time.Time) bool {
	last := c.Status.LastScheduleTime
	return last != nil && last.Unix()/60 == at.Unix()/60
}

// until is how long it is to the next start.
func until(s cron.Schedule, c *batchv1.CronJob, now time.Time) time.Duration {
	next := s.Next(now)
	if !next.IsZero() && started(c, next) {
		next = s.Next(time.Unix(next.Unix()/60*60+59, int64(time.Second-1)).In(now.Location()))
	}
	if next.IsZero() {
		return 0
	}
	return next.Sub(now) + clockStep
}
