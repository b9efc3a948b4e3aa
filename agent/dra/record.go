package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	berthrecord "github.com/berth-node/berth/agent/record"
)

// journalVersion is that of the file's format.
const journalVersion = 1

// journal is the file of the claims.
type journal struct {
	Version int      `json:"version"`
	Claims  []record `json:"claims"`
}

// record is what is known of a claim that pods have, or that drivers were asked to prepare.
type record struct {
	UID       types.UID         `json:"uid"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Results   []result          `json:"results"` // its allocation
	Pods      []user            `json:"pods"`
	Drivers   map[string]driver `json:"drivers"` // that were asked to prepare it, and have not unprepared it
}

// result is one device of a claim's allocation.
type result struct {
	Request string    `json:"request"`
	Driver  string    `json:"driver"`
	Pool    string    `json:"pool"`
	Device  string    `json:"device"`
	Share   types.UID `json:"share,omitempty"` // of a device that several claims have parts of
	Admin   bool      `json:"admin,omitempty"` // beside whoever else has it

	NoPrepare   bool `json:"noPrepare,omitempty"` // the driver need not be asked
	NoUnprepare bool `json:"noUnprepare,omitempty"`
}

func (r *result) id() string { return r.Driver + "/" + r.Pool + "/" + r.Device }

// conflicts: one of them would have to go without the device.
func (r *result) conflicts(o *result) bool {
	return r.id() == o.id() && !r.Admin && !o.Admin && (r.Share == "" || o.Share == "" || r.Share == o.Share)
}

// user is a pod that has a claim.
type user struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	As        []string  `json:"as"` // entries of its spec.resourceClaims
}

// driver is what was asked of one driver.
type driver struct {
	Boot     string   `json:"boot"` // the machine's run that it was asked in
	Prepared bool     `json:"prepared"`
	Devices  []device `json:"devices,omitempty"` // its answer
}

// device is one that a driver has prepared.
type device struct {
	Requests []string  `json:"requests,omitempty"` // none: all of the claim's
	Pool     string    `json:"pool"`
	Device   string    `json:"device"`
	Share    types.UID `json:"share,omitempty"`
	CDI      []string  `json:"cdi,omitempty"`
}

// of says whether a device is one that a request was answered with; "" is every request. Alternatives belong to their
// request.
func (d *device) of(request string) bool {
	return request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(r string) bool {
		main, _, _ := strings.Cut(r, "/")
		return r == request || main == request
	})
}

// user is the index of a pod; -1: it does not have the claim.
func (r *record) user(pod types.UID) int {
	return slices.IndexFunc(r.Pods, func(u user) bool { return u.UID == pod })
}

func (r *record) clone() record {
	out := *r
	out.Pods, out.Drivers = slices.Clone(r.Pods), maps.Clone(r.Drivers)
	if out.Drivers == nil {
		out.Drivers = map[string]driver{}
	}
	return out
}

// String is how messages name the claim.
func (r *record) String() string { return fmt.Sprintf("resourceclaim %q", r.Namespace+"/"+r.Name) }

// drivers are those of the allocation, in its order, as far as they are to be asked.
func (r *record) drivers() []string {
	var out []string
	for _, x := range r.Results {
		if !slices.Contains(out, x.Driver) && slices.ContainsFunc(r.Results, func(o result) bool { return o.Driver == x.Driver && !o.NoPrepare }) {
			out = append(out, x.Driver)
		}
	}
	return out
}

// unprepares says whether a driver wants to be told of the end.
func (r *record) unprepares(name string) bool {
	return slices.ContainsFunc(r.Results, func(o result) bool { return o.Driver == name && !o.NoUnprepare })
}

// commit writes the claims down and then goes by them.
func (l *ledger) commit(next claims) error {
	j := journal{Version: journalVersion, Claims: []record{}}
	for _, uid := range slices.Sorted(maps.Keys(next)) {
		j.Claims = append(j.Claims, next[uid].record)
	}
	if err := berthrecord.Write(l.file, j); err != nil {
		return fmt.Errorf("write claims of pods: %w", err)
	}
	l.claims = next
	return nil
}

// load reads what an agent before this one had.
func (l *ledger) load(log *slog.Logger) error {
	j, bad, err := berthrecord.Load(l.file, journalVersion, decode)
	if err != nil {
		return fmt.Errorf("read claims of pods: %w", err)
	}
	if bad != nil {
		log.Warn("claims of pods cannot be read: what drivers have prepared may stay so", "file", l.file, "error", bad)
	}
	if j == nil {
		return nil
	}
	for _, r := range j.Claims {
		for name, d := range r.Drivers {
			if d.Boot != l.boot {
				r.Drivers[name] = driver{Boot: d.Boot} // it was asked, and nothing came of it that is still there
			}
		}
		l.claims[r.UID] = &claim{r, make(chan struct{}, 1)}
	}
	return nil
}

// decode reads the file.
func decode(data []byte) (*journal, error) {
	j := &journal{}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, err
	}
	seen := map[types.UID]bool{}
	for i := range j.Claims {
		r := &j.Claims[i]
		switch {
		case r.UID == "" || r.Name == "":
			return nil, errors.New("a claim in it has no uid or no name")
		case seen[r.UID]:
			return nil, fmt.Errorf("claim %s is in it twice", r.UID)
		}
		seen[r.UID] = true
		for _, p := range r.Pods {
			if p.UID == "" {
				return nil, fmt.Errorf("a pod of claim %s has no uid", r.UID)
			}
		}
		for name := range r.Drivers {
			if name == "" {
				return nil, fmt.Errorf("a driver of claim %s has no name", r.UID)
			}
		}
	}
	return j, nil
}
