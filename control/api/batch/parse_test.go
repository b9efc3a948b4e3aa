package batch

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestCountIndexes(t *testing.T) {
	completions := int32(10)
	for _, c := range []struct {
		text string
		want int32
		bad  bool
	}{
		{"", 0, false},
		{"0", 1, false},
		{"1,3-5,7", 5, false},
		{"0-9", 10, false},
		{"10", 0, true},
		{"3-3", 0, true},
		{"5-3", 0, true},
		{"1,1", 0, true},
		{"1-3,2", 0, true},
		{"a", 0, true},
		{"1,,2", 0, true},
		{"-1", 0, true},
	} {
		got, err := countIndexes(c.text, &completions)
		if (err != nil) != c.bad || got != c.want {
			t.Errorf("%q: %d, %v", c.text, got, err)
		}
	}
}

func FuzzCountIndexes(f *testing.F) {
	for _, s := range []string{"", "0", "1,3-5,7", "5-3", "0-2147483647", "-", ","} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		completions := int32(1000)
		if n, err := countIndexes(text, &completions); err == nil && (n < 0 || n > completions) {
			t.Errorf("%q has %d indexes", text, n)
		}
	})
}

// FuzzSchedule looks for schedules that the library does not survive.
func FuzzSchedule(f *testing.F) {
	for _, s := range []string{"* * * * *", "TZ=", "CRON_TZ=Europe/Berlin", "TZ=UTC 0 0 * * *", "@every 1h", "@", " ", "TZ=\t* * * * *", "*/0 * * * *"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		schedule(&batchv1.CronJobSpec{Schedule: text}, nil, field.NewPath("spec", "schedule"))
	})
}
