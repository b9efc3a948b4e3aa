package quantity

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// inTime fails when f does not come to its end: what it is about takes for ever, and not only long.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%.60s: takes for ever", what)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"1e3":                  "1e3",
		"1E":                   "1E",
		"12e6":                 "12e6",
		"1e+03":                "1e+03",
		"0.5":                  "500m",
		"1e-99":                "1e-9",
		"0e99":                 "0",
		"-2":                   "-2",
		"128Mi":                "128Mi",
		"9223372036854775807":  "9223372036854775807",
		"0.000000001":          "1n",
		"1000000000000000e-12": "1e3",
	} {
		if q, err := Parse(text); err != nil || q.String() != want {
			t.Errorf("%s: %s, %v, want %s", text, q.String(), err, want)
		}
	}
	for text, want := range map[string]error{
		"":                                      errForm,
		"x":                                     errForm,
		"1ee3":                                  errForm,
		"1e":                                    errForm,
		"1e19":                                  ErrLarge,
		"-1e19":                                 ErrLarge,
		"1e99":                                  ErrLarge,
		"9300P":                                 ErrLarge,
		"1e100":                                 errCostly,
		"1e9999999":                             errCostly,
		"1E999999999":                           errCostly,
		"1e-999999999":                          errCostly,
		"1e-000999999999":                       errCostly,
		"12345678901234567890e9999999":          errCostly,
		"1e4294967299":                          errCostly, // which is 1e3 to who counts in 32 bits
		strings.Repeat("9", 1<<20):              errCostly,
		"0." + strings.Repeat("0", 1<<20) + "1": errCostly,
	} {
		inTime(t, text, func() {
			if q, err := Parse(text); !errors.Is(err, want) {
				t.Errorf("%.60s: %s, %v, want %v", text, q.String(), err, want)
			}
		})
	}
}

type inner struct {
	Weight *resource.Quantity
}

type outer struct {
	inner `json:",inline"`

	Spec  corev1.PodSpec         `json:"spec"`
	Size  resource.QuantityValue `json:"size"`
	Left  resource.Quantity      `json:"-"`
	Lists [][]resource.Quantity  `json:"lists"`
}

func TestCheckJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"spec":{"containers":[{},{"resources":{"limits":{"cpu":"1e-999999999"}}}]}}`: "spec.containers[1].resources.limits[cpu]",
		`{"spec":{"containers":[{"resources":{"limits":{"cpu":1e999999999}}}]}}`:       "spec.containers[0].resources.limits[cpu]",
		`{"spec":{"overhead":{"cpu":"1e999999999","cpu":"1"},"overhead":{}}}`:          "spec.overhead[cpu]",
		`{"spec":{"volumes":[{"emptyDir":{"sizeLimit":"1e100"}}]}}`:                    "spec.volumes[0].emptyDir.sizeLimit",
		`{"size":"1e100"}`:                               "size",
		`{"size":"1\u0065100"}`:                          "size",
		`{"size":"1e\u003100"}`:                          "size",
		`{"size":"1e\u002d100"}`:                         "size",
		`{"\u0073ize":"1e100"}`:                          "size",
		`{"Weight":"1e100"}`:                             "Weight",
		`{"lists":[[],["1","1e-100"]]}`:                  "lists[1][1]",
		`{"spec":{"nodeName":"1e999"}}`:                  "",
		`{"x":{"spec":"1e999"}}`:                         "",
		`{"-":"1e999","Left":"1e999"}`:                   "",
		`{"size":"1e99","x":"1e999"}`:                    "",
		`{"x":1e999,"size":1e999`:                        "size",
		`{"x":"1e999"`:                                   "",
		`{"SIZE":"1e999"}`:                               "SIZE", // as encoding/json reads it
		`1e999`:                                          "",
		`{"spec":["1e999",{"a":"b"}}`:                    "",
		strings.Repeat("[", 1<<22) + `1e999`:             "",
		`{"size":"1` + strings.Repeat("0", 1<<20) + `"}`: "size",
	} {
		inTime(t, text, func() {
			found := CheckJSON([]byte(text), &outer{})
			if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || found[0].Field != want) {
				t.Errorf("%.60s: %.300v, want %q", text, found, want)
			}
			if len(found) > 0 && len(found[0].Error()) > 300 {
				t.Errorf("%.60s: says %d bytes", text, len(found[0].Error()))
			}
		})
	}
	for text, want := range map[string]bool{
		`{"size":"1e999"}`: true, `{"size":" +1e999 "}`: true, `[-.1E+999]`: true, "1e999": true, "\u00a01e999\u00a0": true,
		`"` + strings.Repeat("1", maxDigits+1) + `"`: true,
		`"sha256:6b228f5ce0a91e205590c0"`:            false, "ab1e999": false, "1e999a": false, `"1e99","12e3"`: false,
		`"14e11111-1111-4111-8111-111111111111"`: false, `"1e--999"`: false,
		`"` + strings.Repeat("a1", maxDigits+1) + `"`: false,
	} {
		if got := suspicious([]byte(text)); got != want {
			t.Errorf("%.60q is suspicious: %v", text, got)
		}
	}
	many := CheckJSON([]byte(`{"lists":[["1e999"`+strings.Repeat(`,"1e999"`, 1000)+`]]}`), &outer{})
	if len(many) != maxErrors {
		t.Errorf("%d errors, want %d", len(many), maxErrors)
	}
}

// FuzzParse: what is taken can be compared, rounded and written down, and is the same when it is read again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"1", "1e3", "-0.5", "128Mi", "1e999999999", "1e-999999999", "9223372036854775807", "1.5Ei", "+.e-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := Parse(text)
		if err != nil {
			return
		}
		if q.CmpInt64(math.MaxInt64) > 0 || q.Value() < 0 != (q.Sign() < 0) {
			t.Fatalf("%q: is %s, of which %d is counted", text, q.String(), q.Value())
		}
		again, err := Parse(q.String())
		if err != nil || again.Cmp(q) != 0 {
			t.Fatalf("%q: %s comes back as %s, %v", text, q.String(), again.String(), err)
		}
	})
}

// FuzzCheckJSON: what is let through is decoded in no time.
func FuzzCheckJSON(f *testing.F) {
	for _, s := range []string{
		`{"size":"1e3","lists":[["1",2]]}`, `{"size":"1e-999999999"}`, `{"spec":{"overhead":{"cpu":1e999999999}}}`, `{"Weight":"1","weight":2}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		into := &outer{}
		if len(CheckJSON(data, into)) > 0 || json.Unmarshal(data, into) != nil {
			return
		}
		for _, l := range into.Lists {
			for _, q := range l {
				_ = q.Cmp(into.Size.Quantity) // of at most 99 places
			}
		}
	})
}

// TestSuspect: whoever is not suspected is not read, so that no way of writing such a number may hide it.
func TestSuspect(t *testing.T) {
	wide := []byte{0xff, 0xfe}
	for _, c := range "cpu: 1e-999999999" {
		wide = append(wide, byte(c), 0)
	}
	for text, want := range map[string]bool{
		`{"cpu":"100m","memory":"1e3","image":"a@sha256:12"}`: false,
		"cpu: 100m\nmemory: 1.5Gi\n":                          false,
		`{"cpu":"1e-999999999"}`:                              true,
		"cpu: 1e-999999999":                                   true,
		`{"cpu":"1\u0065-999999999"}`:                         true,
		`cpu: "1\x65-999999999"`:                              true,
		string(wide):                                          true,
		ProtobufPrefix + "\x0a\x00\x04100m":                   false,
		ProtobufPrefix + "\x0a\x00\x0c1e-999999999":           true,
	} {
		if got := Suspect([]byte(text)); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
