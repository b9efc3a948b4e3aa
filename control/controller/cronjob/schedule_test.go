package cronjob

import (
	"errors"
	"math"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller/owned"
)

func cronOf(schedule, zone string) *batchv1.CronJob {
	c := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: schedule}}
	if zone != "" {
		c.Spec.TimeZone = &zone
	}
	return c
}

func TestMissed(t *testing.T) {
	t.Parallel()
	day := func(d, h, m int) time.Time { return time.Date(2026, time.March, d, h, m, 0, 0, time.UTC) }
	for _, c := range []struct {
		schedule, zone   string
		after, now, last time.Time
		count            int
	}{
		{"0 * * * *", "", day(1, 0, 30), day(1, 0, 59), time.Time{}, 0},
		{"0 * * * *", "", day(1, 0, 30), day(1, 1, 0), day(1, 1, 0), 1},
		{"0 * * * *", "", day(1, 0, 30), day(1, 3, 59), day(1, 3, 0), 3},
		{"* * * * *", "", day(1, 0, 0), day(9, 0, 30), day(9, 0, 30), many + 1},
		{"0 0 1 * *", "", day(1, 0, 0).AddDate(-20, 0, 0), day(9, 0, 0), day(1, 0, 0), many + 1},
		{"0 0 30 2 *", "", day(1, 0, 0), day(9, 0, 0), time.Time{}, 0}, // never
		{"0 12 * * *", "America/New_York", day(2, 0, 0), day(2, 17, 30), day(2, 17, 0), 1},
		// The hour from two to three is not on the day when the clocks go forward.
		{"30 2 * * *", "America/New_York", day(8, 0, 0), day(8, 23, 0), time.Time{}, 0},
		{"@every 1h", "", day(1, 0, 0), day(1, 2, 30), day(1, 2, 0), 2},
	} {
		s, err := scheduleOf(cronOf(c.schedule, c.zone))
		if err != nil {
			t.Fatal(err)
		}
		if last, count := missed(s, c.after, c.now); !last.Equal(c.last) || count != c.count {
			t.Errorf("%s from %s to %s: %s, %d; want %s, %d", c.schedule, c.after, c.now, last, count, c.last, c.count)
		}
	}
	if _, err := scheduleOf(cronOf("0 * * * *", "Nowhere/Land")); !errors.Is(err, errZone) {
		t.Errorf("a zone that there is not is taken: %v", err)
	}
}

// TestSince has a deadline that never comes not hide the starts that were missed.
func TestSince(t *testing.T) {
	t.Parallel()
	now, d := time.Unix(1_800_000_000, 0), int64(math.MaxInt64)
	c := cronOf("* * * * *", "")
	c.CreationTimestamp, c.Spec.StartingDeadlineSeconds = metav1.NewTime(now.Add(-time.Hour)), &d
	if from := since(c, now); !from.Equal(c.CreationTimestamp.Time) {
		t.Errorf("starts count from %s on", from)
	}
}

// TestName has one start be one job, whoever starts it, however often.
func TestName(t *testing.T) {
	t.Parallel()
	c := cronOf("* * * * *", "Europe/Paris")
	c.Name, c.UID = "c", "u"
	at := time.Unix(1_800_000_000, 0)
	a, b := jobOf(c, at), jobOf(c, at)
	if a.Name != "c-30000000" || a.Name != b.Name || !metav1.IsControlledBy(a, c) {
		t.Errorf("the job is %v", a.ObjectMeta)
	}
	if text := a.Annotations[batchv1.CronJobScheduledTimestampAnnotation]; text != at.In(mustZone(t, "Europe/Paris")).Format(time.RFC3339) {
		t.Errorf("it was to start at %s", text)
	}
}

func mustZone(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestSeconds has a schedule name each second: a minute that has its job is not started again, and the next one is
// waited for. A schedule of hours is what it was.
func TestSeconds(t *testing.T) {
	t.Parallel()
	at := func(minute, second int) time.Time {
		return time.Date(2026, time.March, 1, 12, minute, second, 0, time.UTC)
	}
	c := cronOf("@every 1s", "")
	c.CreationTimestamp = metav1.NewTime(at(0, 0))
	client := fake.NewClientset(c)
	jobs := informers.NewSharedInformerFactory(client, 0).Batch().V1().Jobs()
	k := &keeper{client: client, events: record.NewFakeRecorder(100), made: owned.NewWrites(jobs.Informer().GetIndexer())}
	for minute := range 3 {
		for second := 1; second < 60; second++ {
			k.now = func() time.Time { return at(minute, second) }
			if _, err := k.start(t.Context(), c, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(client.Actions()); n != 3 {
		t.Errorf("%d requests are made", n)
	}
	k.now = func() time.Time { return at(2, 20) }
	if next, err := k.start(t.Context(), c, nil); err != nil || next != 40*time.Second+clockStep {
		t.Errorf("the next look is in %s, %v", next, err)
	}
	c = cronOf("@every 1h", "")
	c.Status.LastScheduleTime = new(metav1.NewTime(at(2, 20)))
	k.now = func() time.Time { return at(2, 25) }
	if next, err := k.start(t.Context(), c, nil); err != nil || next != time.Hour+clockStep {
		t.Errorf("the next look is in %s, %v", next, err)
	}
}
