package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/pressure"
	"github.com/berth-node/berth/cgroups/oom"
	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// shortOf is eviction that says what it was asked.
type shortOf struct{}

func (shortOf) State(context.Context) pressure.State { return pressure.State{Unknown: "the state"} }

func (shortOf) Rank(_ context.Context, of signal.Signal) ([]rank.Line, error) {
	return []rank.Line{{Figures: "by " + string(of)}}, nil
}

func (shortOf) Simulate(_ context.Context, of signal.Signal, available int64) ([]pressure.Simulation, error) {
	return []pressure.Simulation{{Signal: of, Available: available}}, nil
}

func (shortOf) Decisions() []eviction.Decision {
	return []eviction.Decision{
		{Message: "first", Pod: eviction.Name{Namespace: "a", Name: "web", UID: "1"}},
		{Message: "second", Pod: eviction.Name{Namespace: "b", Name: "web", UID: "2"}},
		{Message: "nobody"},
	}
}

// killed is what the kernel has killed.
type killed struct{}

func (killed) Reports() []oom.Report {
	return []oom.Report{{Namespace: "a", Pod: "leak", UID: "9"}, {Namespace: "b", Pod: "bomb"}}
}

func TestEviction(t *testing.T) {
	s := New(Config{Shortage: Shortage{Eviction: shortOf{}, Kills: killed{}}})
	for url, want := range map[string]struct {
		code int
		has  string
		not  string
	}{
		"/eviction":                                                {200, "the state", ""},
		"/eviction/rank":                                           {200, "by memory.available", ""},
		"/eviction/rank?signal=pid.available":                      {200, "by pid.available", ""},
		"/eviction/rank?signal=luck":                               {400, "must be one of memory.available", ""},
		"/eviction/simulate?available=1Ki":                         {200, `"available":1024`, ""},
		"/eviction/simulate?available=much":                        {400, "is no quantity", ""},
		"/eviction/simulate?available=-1":                          {400, "is no quantity", ""},
		"/eviction/simulate?signal=imagefs.inodesFree&available=5": {200, `"signal":"imagefs.inodesFree"`, ""},
		"/eviction/decisions":                                      {200, "nobody", "Error"},
		"/eviction/decisions?namespace=a":                          {200, "first", "second"},
		"/eviction/decisions?pod=2":                                {200, "second", "first"},
		"/eviction/decisions?namespace=b&pod=web":                  {200, "second", "nobody"},
		"/eviction/oom":                                            {200, "leak", "Error"},
		"/eviction/oom?namespace=a&pod=9":                          {200, "leak", "bomb"},
		"/eviction/oom?pod=bomb":                                   {200, "bomb", "leak"},
		"/eviction/oom?namespace=c":                                {200, "[]", "bomb"},
		"/eviction/decisions?namespace=c":                          {200, "[]", "web"},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
		body := w.Body.String()
		if w.Code != want.code || !strings.Contains(body, want.has) || want.not != "" && strings.Contains(body, want.not) {
			t.Errorf("%s: %d %s", url, w.Code, body)
		}
	}
}
