package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/internal/commandline"
)

// The words of the list for what manifests ask for and does not run.
const (
	statusRefused = "Refused"
	// editRefused is behind the state of a pod that runs on as its manifest was before.
	editRefused = ",EditRefused"
)

// refusal is a manifest, or one document of it, that is refused without a pod of it that runs.
type refusal struct {
	namespace, name string // of the pod; where none is named, no namespace, and the name of the file or of the object
	problems        []api.Problem
}

// refusals are the rows beside those of pods, in the order of files.
func refusals(problems []api.Problem) []*refusal {
	var out []*refusal
	for _, p := range problems {
		if len(p.Errors) == 0 || len(p.Kept) > 0 || p.Directory {
			continue
		}
		ns, name, ok := strings.Cut(p.Pod, "/")
		switch {
		case p.Pod == "":
			ns, name = "", filepath.Base(p.File)
		case !ok || strings.Contains(ns, " "): // an object: kind "namespace/name"
			ns, name = "", strings.ReplaceAll(strings.ReplaceAll(p.Pod, `"`, ""), " ", "/")
		}
		same := func(r *refusal) bool { return r.namespace == ns && r.name == name && r.problems[0].File == p.File }
		if i := slices.IndexFunc(out, same); i >= 0 {
			out[i].problems = append(out[i].problems, p)
			continue
		}
		out = append(out, &refusal{ns, name, []api.Problem{p}})
	}
	return out
}

// called says whether key, as somebody typed it, names the refusal: by the pod's name with the node's behind it or
// without, or by the file.
func (r *refusal) called(key types.NamespacedName) bool {
	if r.namespace == "" {
		return key.Name == r.name || key.Name == strings.TrimSuffix(r.name, filepath.Ext(r.name))
	}
	return key.Namespace == r.namespace && (key.Name == r.name || key.Name+"-"+r.problems[0].Node == r.name)
}

// refusedNamed are the refusals that key names.
func refusedNamed(problems []api.Problem, key types.NamespacedName) []*refusal {
	return slices.DeleteFunc(refusals(problems), func(r *refusal) bool { return !r.called(key) })
}

// keptPods are the pods that run on as their files had them before.
func keptPods(problems []api.Problem) map[string]bool {
	out := map[string]bool{}
	for _, p := range problems {
		for _, k := range p.Kept {
			out[k] = true
		}
	}
	return out
}

// addRefused writes the rows of what is refused in a namespace, "" for all. What names no pod is in all of them.
func (t *table) addRefused(rs []*refusal, ns string) {
	for _, r := range rs {
		if ns != "" && r.namespace != "" && r.namespace != ns {
			continue
		}
		t.head()
		cells := []string{r.name, "0/0", statusRefused, "0", "<none>"}
		if t.o.all {
			cells = slices.Insert(cells, 0, cmp.Or(r.namespace, "<none>"))
		}
		if t.o.output == "wide" {
			cells = append(cells, "<none>", cmp.Or(r.problems[0].Node, "<none>"), "<none>")
		}
		t.row(cells)
	}
}

// explainRefused makes an error of a pod that was not found tell that its manifest is refused, where it is.
func explainRefused(ctx context.Context, cl *client.Client, key types.NamespacedName, notFound error) error {
	problems, err := cl.Problems(ctx)
	if err != nil {
		return notFound // what was asked for says more
	}
	rs := refusedNamed(problems, key)
	if len(rs) == 0 {
		return notFound
	}
	p := rs[0].problems[0]
	return &client.Error{Code: http.StatusNotFound, Message: fmt.Sprintf(
		"pod %q does not run: %s is refused: %s ('berth describe %s' tells all)", key.Name, p.File, p.Errors[0], key.Name)}
}

// describeRefused shows what is wrong with a manifest that no pod runs of.
func (c *commands) describeRefused(cmd *cobra.Command, rs []*refusal) error {
	d := &description{out: commandline.Visible(cmd.OutOrStdout()), now: time.Now()}
	for i, r := range rs {
		if i > 0 {
			d.printf("\n")
		}
		d.line("", "Name", "%s", r.name)
		d.line("", "Namespace", "%s", cmp.Or(r.namespace, "<none>"))
		d.line("", "Manifest", "%s", r.problems[0].File)
		d.line("", "Status", statusRefused)
		for _, p := range r.problems {
			d.problem(p)
		}
		var events []corev1.Event
		if uid := r.problems[0].UID; uid != "" {
			var err error
			if events, err = c.client().Events(cmd.Context(), r.namespace, uid); err != nil {
				return err
			}
		}
		d.events(events)
	}
	return d.err
}

// problem shows what is wrong with a manifest, where, and what is to be done.
func (d *description) problem(p api.Problem) {
	for _, e := range p.Errors {
		d.line("", "Problem", "%s: %s", p.File, e)
	}
	for _, w := range p.Warnings {
		d.line("", "Warning", "%s: %s", p.File, w)
	}
	switch {
	case len(p.Kept) > 0:
		d.line("", "Remedy", "the pod runs on as the manifest was before; mend %s, which is read again as soon as it is "+
			"saved", p.File)
	case len(p.Errors) > 0:
		d.line("", "Remedy", "mend %s, which is read again as soon as it is saved", p.File)
	}
}
