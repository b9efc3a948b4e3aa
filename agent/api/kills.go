package api

import (
	"net/http"

	"github.com/berth-node/berth/cgroups/oom"
)

// Kills tells of processes that the kernel has killed for want of memory.
type Kills interface {
	// Reports are those that are kept, the oldest first.
	Reports() []oom.Report
}

// kills tells what a [Kills] knows.
type kills struct{ all Kills }

// reports are those about one pod, by its name or UID, or all.
func (k *kills) reports(w http.ResponseWriter, r *http.Request) error {
	ns, name := r.FormValue("namespace"), r.FormValue("pod")
	out := []oom.Report{}
	for _, one := range k.all.Reports() {
		if (ns == "" || one.Namespace == ns) && (name == "" || one.Pod == name || one.UID == name) {
			out = append(out, one)
		}
	}
	return writeJSON(w, out)
}
