package threshold

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

// lines writes a policy's thresholds, one a line.
func lines(p Policy) string {
	var out []string
	for _, t := range p.Thresholds {
		line := t.Kind() + " " + t.String()
		if t.Soft {
			line += " for " + t.Grace.String()
		}
		if t.MinReclaim != (Value{}) {
			line += " +" + t.MinReclaim.Format(t.Signal)
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func TestPolicy(t *testing.T) {
	const defaults = "hard memory.available<100Mi\nhard nodefs.available<10%\nhard nodefs.inodesFree<5%\n" +
		"hard imagefs.available<15%\nhard imagefs.inodesFree<5%"
	pair := func(name, value string) map[string]string { return map[string]string{name: value} }
	for name, tt := range map[string]struct {
		settings Settings
		want     string
	}{
		"defaults":              {Settings{}, defaults},
		"none":                  {Settings{Hard: map[string]string{}}, ""},
		"instead of defaults":   {Settings{Hard: pair("memory.available", "1Gi")}, "hard memory.available<1Gi"},
		"beside the defaults":   {Settings{Hard: pair("pid.available", "1k"), MergeDefaults: true}, defaults + "\nhard pid.available<1k"},
		"none but defaults":     {Settings{Hard: map[string]string{}, MergeDefaults: true}, defaults},
		"off":                   {Settings{Hard: pair("memory.available", "0%")}, ""},
		"off beside defaults":   {Settings{Hard: pair("imagefs.inodesFree", "100%"), MergeDefaults: true}, strings.TrimSuffix(defaults, "\nhard imagefs.inodesFree<5%")},
		"by its canonical form": {Settings{Hard: pair("memory.available", "0.5Gi")}, "hard memory.available<512Mi"},
		"for all pods": {
			Settings{Hard: pair("memory.available", "5%"), EnforceAllocatable: true},
			"hard memory.available<5%\nhard allocatableMemory.available<5%",
		},
		"for all pods another": {
			Settings{Hard: map[string]string{"memory.available": "5%", "allocatableMemory.available": "7Mi"}, EnforceAllocatable: true},
			"hard memory.available<5%\nhard allocatableMemory.available<7Mi",
		},
		"for all pods none": {
			Settings{Hard: map[string]string{"memory.available": "5%", "allocatableMemory.available": "0%"}, EnforceAllocatable: true},
			"hard memory.available<5%",
		},
		"soft": {
			Settings{
				Hard: map[string]string{}, Soft: pair("nodefs.available", "12.5%"), SoftGrace: pair("nodefs.available", "1m30s"),
				MinReclaim: pair("nodefs.available", "500Mi"),
			},
			"soft nodefs.available<12.5% for 1m30s +500Mi",
		},
		"hard before soft": {
			Settings{
				Hard: pair("memory.available", "100Mi"), Soft: pair("memory.available", "1Gi"), SoftGrace: pair("memory.available", "0s"),
				MinReclaim: pair("memory.available", "1%"), EnforceAllocatable: true,
			},
			"hard memory.available<100Mi +1%\nsoft memory.available<1Gi for 0s +1%\nhard allocatableMemory.available<100Mi +1%",
		},
		"for signals without threshold": {
			Settings{Hard: map[string]string{}, SoftGrace: pair("nodefs.available", "1m"), MinReclaim: pair("pid.available", "5")}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := tt.settings.Policy()
			if got := lines(p); err != nil || got != tt.want {
				t.Errorf("%v\n%s\nwant\n%s", err, got, tt.want)
			}
		})
	}
}

func TestPolicyRefuses(t *testing.T) {
	memory := func(value string) map[string]string { return map[string]string{"memory.available": value} }
	for want, s := range map[string]Settings{
		`--eviction-hard: "memory.free" is no signal: must be one of memory.available, `:                                                      {Hard: map[string]string{"memory.free": "1Gi"}},
		`--eviction-hard memory.available: "much" is no quantity`:                                                                             {Hard: memory("much")},
		`--eviction-hard memory.available: "1e999999999" is no quantity`:                                                                      {Hard: memory("1e999999999")},
		`--eviction-hard memory.available: -1Gi is negative`:                                                                                  {Hard: memory("-1Gi")},
		`--eviction-hard memory.available<0: must be more than 0`:                                                                             {Hard: memory("0")},
		`--eviction-hard memory.available: 10E is more than anything has`:                                                                     {Hard: memory("10E")},
		`--eviction-hard memory.available: -1% is not from 0% to 100%`:                                                                        {Hard: memory("-1%")},
		`--eviction-hard memory.available: 101% is not from 0% to 100%`:                                                                       {Hard: memory("101%")},
		`--eviction-hard memory.available: NaN% is not from`:                                                                                  {Hard: memory("NaN%")},
		`--eviction-hard memory.available: "ten%" is no percentage`:                                                                           {Hard: memory("ten%")},
		`--eviction-soft memory.available<1Gi: has no grace period: give it one, such as --eviction-soft-grace-period memory.available=1m30s`: {Soft: memory("1Gi")},
		`--eviction-soft-grace-period memory.available: "90" is no duration`:                                                                  {SoftGrace: memory("90")},
		`--eviction-soft-grace-period memory.available: -1s is negative`:                                                                      {SoftGrace: memory("-1s")},
		`--eviction-minimum-reclaim memory.available: -1 is negative`:                                                                         {MinReclaim: memory("-1")},
		`--eviction-minimum-reclaim memory.available: 200% is not from`:                                                                       {MinReclaim: memory("200%")},
		`--eviction-pressure-transition-period -1s: must not be negative`:                                                                     {Transition: -time.Second},
	} {
		if p, err := s.Policy(); err == nil || !strings.Contains(err.Error(), want) || p.Thresholds != nil {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	all := Settings{Hard: map[string]string{"memory.free": "1", "nodefs.available": "x"}, Soft: memory("1Gi"), Transition: -1}
	_, err := all.Policy()
	for _, want := range []string{"memory.free", "nodefs.available", "no grace period", "transition"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("not all that is wrong is said: %v, want %s too", err, want)
		}
	}
}

func TestTimes(t *testing.T) {
	p, err := Settings{}.Policy()
	if err != nil || p.Transition != 5*time.Minute || p.PodGrace(30) != 0 {
		t.Errorf("kubelet's defaults: %v, transition %s, grace %d", err, p.Transition, p.PodGrace(30))
	}
	for _, c := range []struct{ most, asked, want int64 }{
		{60, 30, 30}, {20, 30, 20}, {-1, 30, 30}, {60, -1, 0}, {-1, -1, 0}, {-1, math.MaxInt64, longestGrace},
	} {
		if got := (Policy{MaxPodGrace: c.most}).PodGrace(c.asked); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestAmounts(t *testing.T) {
	th := Threshold{Signal: signal.NodeFsAvailable, Value: Value{Percent: 10}, MinReclaim: Value{Quantity: 50}}
	if at, enough := th.At(1000), th.Enough(1000); at != 100 || enough != 150 {
		t.Errorf("at %d, enough %d", at, enough)
	}
	if th.Met(signal.Reading{Available: 100, Capacity: 1000}) || !th.Met(signal.Reading{Available: 99, Capacity: 1000}) {
		t.Error("less than the value is too little, and the value is not")
	}
	for _, more := range []int64{900, 901, 1 << 40, math.MaxInt64} {
		th.MinReclaim.Quantity = more
		if got := th.Enough(1000); got != 100 {
			t.Errorf("enough where %d more can never be had: %d", more, got)
		}
	}
	th.MinReclaim.Quantity = 899
	if got := th.Enough(1000); got != 999 {
		t.Errorf("enough of nearly all: %d", got)
	}
	if got := (Threshold{Value: Value{Quantity: math.MaxInt64}, MinReclaim: Value{Percent: 100}}).Enough(1000); got != math.MaxInt64 {
		t.Errorf("enough above a threshold that is always met: %d", got)
	}
}

func TestParse(t *testing.T) {
	got, err := ParseHard(" memory.available < 100Mi,nodefs.available<10% ,")
	if err != nil || len(got) != 2 || got["memory.available"] != "100Mi" || got["nodefs.available"] != "10%" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParseSoft(""); err != nil || got == nil || len(got) != 0 {
		t.Errorf("none: %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"memory.available>100Mi":                `has >, and can have < only`,
		"memory.available<=100Mi":               `has <=, and can have < only`,
		"memory.available=100Mi":                `has =, and can have < only`,
		"memory.available":                      `must be a signal, < and a value, such as memory.available<100Mi`,
		"<100Mi":                                `must be a signal, <`,
		"memory.available<":                     `must be a signal, <`,
		"memory.available<1,memory.available<2": `has memory.available twice, 1 and 2: leave one`,
		strings.Repeat(",", maxText+1):          `has 4097 bytes, more than 4096`,
	} {
		if got, err := ParseHard(text); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "--eviction-hard") {
			t.Errorf("%.40q: %v, %v, want %s", text, got, err, want)
		}
	}
}

// pairs are names with values, as a flag has them.
func pairs(text string) map[string]string {
	out := map[string]string{}
	for one := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(one, "="); ok {
			out[name] = value
		}
	}
	return out
}

// FuzzParse: whatever is written, what comes out of it is thresholds that mean something, or an error; and what a
// threshold is written as reads as the same.
func FuzzParse(f *testing.F) {
	for _, seed := range [][4]string{
		{"memory.available<100Mi,nodefs.available<10%", "memory.available<1Gi", "memory.available=1m30s", "nodefs.available=500Mi"},
		{"pid.available<1e3", "imagefs.inodesFree<0.1%", "imagefs.inodesFree=0s", "imagefs.inodesFree=1%"},
		{"memory.available<=1", "<", "=", "%"},
		{"memory.available<1e999999999", "", "", "memory.available=7Ei"},
		{"memory.available<9223372036854775807", "", "", "memory.available=9223372036854775807"},
		{"nodefs.available<1e-400%", "nodefs.available<-0%", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, hard, soft, grace, reclaim string) {
		s := Settings{SoftGrace: pairs(grace), MinReclaim: pairs(reclaim)}
		for _, one := range []struct {
			parse func(string) (map[string]string, error)
			text  string
			to    *map[string]string
		}{{ParseHard, hard, &s.Hard}, {ParseSoft, soft, &s.Soft}} {
			m, err := one.parse(one.text)
			if (m == nil) != (err != nil) {
				t.Fatalf("%q: %v, %v", one.text, m, err)
			}
			*one.to = m
		}
		p, err := s.Policy()
		if err != nil {
			return
		}
		for _, th := range p.Thresholds {
			const capacity = 1 << 40
			at, enough := th.At(capacity), th.Enough(capacity)
			if th.Signal.Resource() == "" || at < 0 || enough < at || th.Grace < 0 || !th.Soft && th.Grace != 0 {
				t.Fatalf("%+v: at %d, enough %d", th, at, enough)
			}
			again, err := ParseHard(th.String())
			if err != nil {
				t.Fatal(err)
			}
			q, err := Settings{Hard: again}.Policy()
			if err != nil || len(q.Thresholds) != 1 || q.Thresholds[0].Value != th.Value {
				t.Fatalf("%s: %+v, %v", th, q.Thresholds, err)
			}
		}
	})
}
